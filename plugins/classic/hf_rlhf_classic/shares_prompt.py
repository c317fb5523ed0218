"""The setting `share_prompt`: trainers that compute the completions of a prompt together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import Tensor

from hf_rlhf import Trainer
from hf_rlhf.contracts import BatchForm, PackedRows
from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.errors import ModelError, Problem
from hf_rlhf.models import model_config
from hf_rlhf.runs import Run, launch_kind
from hf_rlhf_classic.packed_prompts import IGNORED, packed_row
from hf_rlhf_classic.shared_prompt import ATTENTION, PromptOnce, obstacle, unknown

FORM = "each prompt once"
EVENLY = frozenset({"dapo", "grpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo"})
"""Losses of GRPO that do not depend on which rows share a micro-batch."""


@dataclass
class SharesPromptConfig:
    """A base for the `Config` of trainers that derive from `SharesPrompt`."""

    share_prompt: bool | None = field(
        default=None,
        metadata={
            "help": "Compute each prompt once for all its completions. null: where the values are "
            "those of rows alone, measured before the first step; true: or stop."
        },
    )


class SharesPrompt(Trainer):
    """A base class, before a TRL trainer whose loss compares completions of a single prompt."""

    args: Any
    _buffered_inputs: Any
    """The micro-batches of a generation, an attribute of TRL."""
    sharing: "Sharing | None" = None
    _together: Any = None

    @classmethod
    def planned_forms(cls, run: Run) -> Mapping[str, str]:
        """Return whether each prompt will be computed once."""
        if run.training.share_prompt is False:
            return {}
        reason = _unshared(run)
        planned = f"off: {reason}" if reason else "if its values are those of rows alone"
        return {"shared prompt": planned}

    @classmethod
    def packed_rows(cls, run: Run, prompt: Callable[[int], int]) -> PackedRows | None:
        """Return the function that packs a pass, for the memory plan; None if rows stay apart.

        `prompt` maps the tokens of a row to its prompt's tokens. In the worst case TRL's shuffle
        puts no two rows of a prompt together.
        """
        args = run.training
        if args.share_prompt is False or _unshared(run) or _drops(run):
            return None

        def packed(rows: int, tokens: int) -> tuple[str, Mapping[str, Any]] | None:
            steps = getattr(args, "steps_per_generation", None) or 1
            group = getattr(args, "num_generations", 2)
            prompts = ceil(rows / group)
            if steps > 1 and not regroups(args):
                prompts = ceil(rows * steps / group)
            elif rows % group and group % rows:
                prompts += 1  # a group is cut by the end of a micro-batch
            sizes = min(prompts, rows), rows, prompt(tokens), tokens
            arguments = packed_row(*sizes, on_gpu=is_elsewhere() or args.device.type != "cpu")
            return None if arguments is None else (ATTENTION, arguments)

        return packed

    def batch_forms(self) -> Mapping[str, BatchForm]:
        """Return the form that computes each prompt once, if nothing prevents it."""
        if self.args.share_prompt is False:
            return {}
        if self.sharing is None:
            self.sharing = Sharing(self)
        return {} if self.sharing.reason else {FORM: self.sharing}

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return TRL's loss, after bringing the completions of each prompt together."""
        if self.sharing is not None and self.sharing.once is not None and regroups(self.args):
            # TRL has no public access to the rows of a generation.
            buffer = self._buffered_inputs
            if self.model.training and buffer is not self._together and inputs is buffer[0]:
                bring_together(buffer)
                self._together = buffer
        trl: Any = super()
        return trl.compute_loss(model, inputs, *args, **kwargs)

    def report(self) -> Mapping[str, Any]:
        """Add to the trainer's report the tokens that were saved, or why none were."""
        if self.sharing is None:
            return super().report()
        of = " (first process)" if self.args.world_size > 1 else ""
        return {**super().report(), f"Each prompt once{of}": self.sharing.report()}


class Sharing:
    """Whether a trainer computes each prompt once, decided on its own model."""

    def __init__(self, trainer: Any) -> None:
        """Check the trainer's models, without installing hooks."""
        self.trainer = trainer
        models = [trainer.model, getattr(trainer, "ref_model", None)]
        # TRL has put a reference into DeepSpeed's engine by now.
        unwrap = trainer.accelerator.unwrap_model
        self.models = [unwrap(model) for model in models if model is not None]
        self.once: PromptOnce | None = None
        self.reason = ""
        compiled = "`torch_compile` would compile each layout anew"
        reasons = [compiled * trainer.args.torch_compile, alone(trainer.args)]
        reasons.append(auxiliary(trainer.args, trainer.model.config))
        reasons += map(obstacle, self.models)
        if reason := next(filter(None, reasons), ""):
            self.leave(reason)

    def difference(self, rows: Sequence[Sequence[int]]) -> float:
        """Return the largest difference of a log-probability from the row's own without sharing.

        The first half of each row is a prompt, and the other halves are its completions.
        """
        parts = [(row[: len(row) // 2], row[len(row) // 2 :]) for row in rows]
        batch = _batch(parts)
        batch = {name: each.to(self.trainer.model.device) for name, each in batch.items()}
        scored = batch["labels"][:, 1:] != IGNORED
        alone = [
            self._log_probs({k: v[[at]] for k, v in batch.items()}) for at in range(len(scored))
        ]
        once = PromptOnce(self.models[:1])
        try:
            together = self._log_probs(batch)
        finally:
            once.remove()
        apart = (together - torch.cat(alone))[scored].abs().max()
        # The fused head divides by the temperature.
        return float(apart) * float(getattr(self.trainer, "temperature", 1.0))

    def _log_probs(self, batch: Mapping[str, Tensor]) -> Tensor:
        with self.trainer.accelerator.autocast():
            values: Tensor = self.trainer.model(**batch, fused_lm_head=True).log_probs
        return values

    def use(self) -> None:
        """Install the hooks."""
        self.once = PromptOnce(self.models)
        self._say("on: the log-probabilities are those of rows alone")

    def leave(self, reason: str) -> None:
        """Do not share prompts. Raises ModelError if the run has `share_prompt: true`."""
        self.reason = reason
        if self.trainer.args.share_prompt:
            raise ModelError(f"`share_prompt` is true, and cannot be used: {reason}.")
        self._say(f"off: {reason}")

    def report(self) -> dict[str, Any]:
        """Return the tokens of the loss, with each prompt once and without."""
        if self.once is None:
            return {"off": self.reason}
        tokens, packed = self.once.tokens, self.once.packed
        ratio = {"times fewer": round(tokens / packed, 2)} if packed else {}
        return {"tokens of the rows in the loss": tokens, "computed": packed, **ratio}

    def _say(self, what: str) -> None:
        if self.trainer.accelerator.is_main_process:
            print(f"{FORM}: {what}", flush=True)


def sharing_problems(run: Run) -> Iterator[Problem]:
    """Yield why `share_prompt: true` cannot be had, where that is known before weights load."""
    if run.training.share_prompt and (reason := _unshared(run)):
        yield Problem("share_prompt", f"is true, and cannot be used: {reason}.", "Leave it out.")


def _unshared(run: Run) -> str:
    """Return why the prompts of a run cannot be shared, or an empty string."""
    if run.spec.limits.exactness == "off":
        return "`exactness` is off"
    if (kind := launch_kind(run)) in ("DEEPSPEED", "FSDP"):
        return f"nothing is compared under {kind}"
    config = model_config(run)
    if reason := unknown(config) or alone(run.training) or auxiliary(run.training, config):
        return reason
    dropout = run.model.use_peft and run.model.lora_dropout
    if dropout and not getattr(run.training, "disable_dropout", False):
        return f"a `lora_dropout` of {dropout:g}; `lora_dropout: 0` makes it possible"
    return ""


def _drops(run: Run) -> bool:
    """Return whether the loaded model will be an obstacle, as far as its configuration tells."""
    own = run.model.attn_implementation not in (None, "sdpa") or run.training.torch_compile
    values = vars(model_config(run).get_text_config()).items()
    drops = any(value for name, value in values if "drop" in name and isinstance(value, float))
    return bool(own or (drops and not getattr(run.training, "disable_dropout", False)))


def alone(args: Any) -> str:
    """Return why no two completions are computed together, or an empty string."""
    one = hasattr(args, "steps_per_generation") and args.per_device_train_batch_size == 1
    return "a micro-batch has one completion (`per_device_train_batch_size: 1`)" if one else ""


def auxiliary(args: Any, config: Any) -> str:
    """Return that TRL asks a mixture of experts for its auxiliary loss, or an empty string."""
    coefficient, text = getattr(args, "router_aux_loss_coef", 0.0), config.get_text_config()
    if coefficient is None:
        coefficient = getattr(text, "router_aux_loss_coef", 0.0)
    if not (coefficient and hasattr(text, "output_router_logits")):
        return ""
    what = "the auxiliary loss of a mixture of experts counts each copy of a prompt"
    return f"{what}; `router_aux_loss_coef: 0` makes it possible"


def regroups(args: Any) -> bool:
    """Return whether rows may move between micro-batches without changing a gradient.

    All micro-batches of a generation must make a single optimizer step, in which each row has a
    weight that does not depend on its micro-batch.
    """
    steps = getattr(args, "steps_per_generation", None) or 1
    if steps == 1 or steps != args.gradient_accumulation_steps:
        return False
    whole = getattr(args, "top_entropy_quantile", 1.0) == 1.0
    bonus = getattr(args, "entropy_coef", 0.0) or getattr(args, "use_adaptive_entropy", False)
    return getattr(args, "loss_type", "grpo") in EVENLY and whole and not bonus


def bring_together(batches: Sequence[dict[str, Any]]) -> None:
    """Sort the rows of a generation by prompt, over all its micro-batches, in place."""
    size = len(batches[0]["prompt_ids"])
    whole: dict[str, Any] = {}
    for name, value in batches[0].items():
        if isinstance(value, Tensor) and value.dim():
            whole[name] = torch.cat([batch[name] for batch in batches])
        elif isinstance(value, list):
            whole[name] = [each for batch in batches for each in batch[name]]
    prompts = whole["prompt_ids"].tolist()
    order = sorted(range(len(prompts)), key=lambda row: prompts[row])
    for number, batch in enumerate(batches):
        chosen = order[number * size : (number + 1) * size]
        for name, each in whole.items():
            sequence = not isinstance(each, Tensor)
            batch[name] = [each[row] for row in chosen] if sequence else each[chosen]


def _batch(parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, Tensor]:
    """Return every prompt with each completion, padded as TRL pads them."""
    rows = [(prompt, completion) for _, completion in parts for prompt, _ in parts]
    width = max(len(prompt) for prompt, _ in rows)
    length = width + max(len(completion) for _, completion in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    mask = torch.zeros_like(ids)
    for at, (prompt, completion) in enumerate(rows):
        end = width + len(completion)
        ids[at, width - len(prompt) : end] = torch.tensor([*prompt, *completion])
        mask[at, width - len(prompt) : end] = 1
        labels[at, width:end] = ids[at, width:end]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
