"""Iterative DPO: sample from the policy, select pairs by reward, train on them, repeat.

Xu et al. 2023 ("Some things are more cringe than others"), Xiong et al. 2024 ("Iterative preference
learning from human feedback"), Dong et al. 2024 ("RLHF workflow"); with two completions to a prompt
and few steps to an iteration it is nearly Guo et al. 2024 (OAIF).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from accelerate.utils import broadcast_object_list
from datasets import Dataset
from trl import DPOTrainer
from trl.trainer.utils import use_adapter

from hf_rlhf import Method
from hf_rlhf.contracts import StepShape
from hf_rlhf.distributed import distributed_type
from hf_rlhf.errors import Problem
from hf_rlhf.formatting import settings_line
from hf_rlhf.models import policy_arguments, prompt_lengths
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, prompts_fit
from hf_rlhf_classic.dpo import loss_problems
from hf_rlhf_classic.iterative_dpo_config import REFUSED, IterativeDPOConfig
from hf_rlhf_classic.iterative_dpo_measures import held_out_split, reason_to_stop, tables
from hf_rlhf_classic.iterative_dpo_rounds import Rounds
from hf_rlhf_classic.preference_buffer import Pair
from hf_rlhf_classic.reference import NAME, SavesNoReference, held_reference
from hf_rlhf_classic.shares_prompt import SharesPrompt, sharing_problems
from hf_rlhf_classic.tokens_seen import TokensSeen

_ID_AND_TEXT, _BESIDE_TOKENS = 14, 200
"""Bytes of JSON for a token, as number and text, and for an answer's other values."""


class IterativeDPOTrainer(SavesNoReference, SharesPrompt, DPOTrainer):  # type: ignore[misc]
    """DPO (Rafailov et al. 2023) on pairs sampled from the policy: `--plugin iterative_dpo`.

    Each iteration is an epoch of TRL's trainer, whose rows are generated when it begins. A single
    optimizer and learning-rate schedule span the whole run. The reference is the initial policy or
    the policy at the start of the iteration. Its log-probabilities are computed before an
    iteration's first step, so no second model runs in the steps.
    """

    Config = IterativeDPOConfig
    default_run = "tiny"
    columns = frozenset({"prompt"})
    refused_settings = REFUSED
    method = Method(
        "iterative DPO",
        tags=("trl", "iterative_dpo", "dpo"),
        citations=(
            "Rafailov et al. 2023, Direct Preference Optimization, arXiv:2305.18290",
            "Xiong et al. 2024, Iterative Preference Learning from Human Feedback, "
            "arXiv:2312.11456",
        ),
        summary="The policy samples its own completions; the reward picks the pairs to train on.",
    )

    rounds: Rounds
    ref_model: Any

    @classmethod
    def preflight(cls, run: Run) -> Iterator[Problem]:
        """Yield problems that would stop the run at its first iteration or change it silently."""
        yield from common_problems(run)
        yield from loss_problems(run)
        yield from sharing_problems(run)
        yield from _fits(run)
        yield from prompts_fit(run, "max_completion_length")
        if run.spec.monitor is not None:
            what = "has no effect: iterative_dpo scores completions between epochs, not in steps."
            fix = "Leave it out: `measured_prompts` measures each iteration on held-out prompts."
            yield Problem("monitor", what, fix)
        if (kind := distributed_type(run.training)) in ("DEEPSPEED", "FSDP"):
            yield Problem(
                "launch",
                f"iterative_dpo samples from a whole policy on each process, and {kind} shards.",
                "Launch one process, or several as plain DDP.",
            )

    @classmethod
    def advice(cls, run: Run) -> Iterable[str]:
        """Return a note if fewer prompts are held out than the run wants to measure."""
        wanted, split = run.training.measured_prompts, run.dataset.get(held_out_split(run), ())
        fewer = f"measured_prompts is {wanted}, and only {len(split)} rows are held out."
        return [*super().advice(run), *([fewer] if len(split) < wanted else [])]

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: both responses of a pair, sampling batch and reference."""
        training, held = run.training, held_reference(run)
        rows, sampled = 2 * training.per_device_train_batch_size, training.rollout_batch_size
        return StepShape(rows=rows, head="fused", sampled_rows=sampled, held=held)

    @classmethod
    def extra_disk_bytes(cls, run: Run) -> int:
        """Return the size of `iterations/` if every completion had full length."""
        training = run.training
        prompts, answers = training.prompts_per_iteration, training.completions_per_prompt
        answer = _BESIDE_TOKENS + _ID_AND_TEXT * training.max_completion_length
        prompt = _BESIDE_TOKENS + _ID_AND_TEXT * max(prompt_lengths(run), default=0)
        measured = training.measured_prompts * answer
        rollouts = prompts * (prompt + answers * answer)
        return int(training.iterations * (rollouts + measured) + measured)

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the sampling settings of an iteration."""
        names = (
            *("iterations", "prompts_per_iteration", "completions_per_prompt"),
            *("rollout_batch_size", "pairs", "buffer", "reference", "temperature", "top_p"),
        )
        return {"Rollouts": settings_line(vars(run.training), *names)}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        rounds = Rounds(run)
        trainer = cls(
            **policy_arguments(run),
            args=run.training,
            # TRL requires rows of a known form now; the real rows come with the first iteration.
            train_dataset=Dataset.from_list([{"prompt": " a", "chosen": " b", "rejected": " c"}]),
            processing_class=run.tokenizer,
            callbacks=[rounds, *run.callbacks],
        )
        trainer.train_dataset = rounds.rows
        trainer.precompute_ref_logps = True
        trainer.rounds = rounds
        trainer.add_callback(TokensSeen(trainer))
        rounds.trainer = trainer
        return trainer

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train to the end, optionally from a checkpoint of this or another run folder."""
        if isinstance(resume_from_checkpoint, (str, Path)):
            folder = Path(resume_from_checkpoint).resolve().parents[1] / "iterations"
            if self.is_world_process_zero() and folder != self.rounds.folder.resolve():
                self.rounds.copy_missing(folder)
            broadcast_object_list([None])  # the others wait
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def report(self) -> Mapping[str, Any]:
        """Return the iterations, as tables for the card."""
        history, iterations = self.state.log_history, self.args.iterations
        policy = max((entry["policy"] for entry in history if "policy" in entry), default=0)
        stopped = self.args.stop_without_gain and 0 < policy < iterations
        if not stopped or (reason := reason_to_stop(history, policy)) is None:
            return {**super().report(), **tables(history)}
        why = {"after iteration": policy, "because": reason}
        return {**super().report(), **tables(history), "Stopped early": why}

    @contextmanager
    def initial_policy(self) -> Iterator[Any]:
        """Yield the policy at the start of the run."""
        if self.ref_model is not None:
            yield self.accelerator.unwrap_model(self.ref_model)
            return
        model = self.accelerator.unwrap_model(self.model)
        with use_adapter(model, NAME if NAME in model.peft_config else None):
            yield model

    def reference_logps(self, pairs: Sequence[Pair]) -> list[list[float]]:
        """Return the reference's log-probability of each pair's chosen and rejected completion."""
        batch = self.data_collator([pair.as_row() for pair in pairs])
        inputs = {name: value.to(self.args.device) for name, value in batch.items()}
        chosen, rejected = self._frozen_logps(inputs)
        return torch.stack([chosen, rejected], dim=1).tolist()

    def _frozen_logps(self, inputs: Mapping[str, Any]) -> Any:
        initial = self.ref_model
        model = initial if initial is not None else self.model
        if self.args.reference == "previous":
            # If there is a reference model, TRL leaves the policy's adapter unchanged.
            model = self.ref_model = self.model
        try:
            return self.compute_ref_log_probs(model, inputs)
        finally:
            self.ref_model = initial


def _fits(run: Run) -> Iterator[Problem]:
    training = run.training
    if run.reward is None or all(part.weight == 0 for part in run.reward.rewards):
        yield Problem(
            "rewards",
            "no reward has a weight other than 0, so no completion is preferred.",
            "Name a reward, or `reward_model`, to label pairs with.",
        )
    rows = len(run.dataset["train"])
    if rows < training.prompts_per_iteration:
        yield Problem(
            "prompts_per_iteration",
            f"is {training.prompts_per_iteration}, and the dataset has {rows} training rows.",
            "Lower it, or give more prompts.",
        )
    if not training.measured_prompts:
        return
    split = run.dataset.get(held_out_split(run))
    if split is None or len(split) == 0:
        yield Problem(
            "measured_prompts",
            f"is {training.measured_prompts}, and no rows are held out ({held_out_split(run)!r}).",
            "Hold some out, or write `measured_prompts: 0` to measure no iteration.",
        )
