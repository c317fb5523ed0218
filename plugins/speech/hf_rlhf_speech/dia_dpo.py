"""DPO of Dia, which predicts all codebooks at once, on pairs of clips: `dia_dpo`.

TRL's trainers read the logits of a single head. Dia has a head per codebook and writes codebook `k`
of a frame some steps later, so its loss is here; the log-probabilities are `delayed_log_probs`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
import transformers
from annotated_types import Gt
from torch.nn.functional import logsigmoid, pad
from torch.nn.utils.rnn import pad_sequence

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.data import text_of
from hf_rlhf.distributed import distributed_type
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import (
    Evaluation,
    held_out_rows,
    measure_rows,
    saved_model,
    validation_rows,
)
from hf_rlhf.formatting import settings_line
from hf_rlhf.models import load_policy, model_config
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import splits
from hf_rlhf_speech.codecs.codec import load_codec
from hf_rlhf_speech.codecs.policy import name_problems
from hf_rlhf_speech.log_probs import delayed_log_probs

Pair = Mapping[str, torch.Tensor]
"""`text` [tokens], `chosen` and `rejected` [frames, codebooks], each with an end frame."""
_SIDES = ("chosen", "rejected")


@dataclass
class DiaDPOConfig(transformers.TrainingArguments):  # type: ignore[misc]
    """transformers' `TrainingArguments` with other defaults, the codec, and DPO's beta."""

    codec: str = field(
        default="dac:descript/dac_44khz",
        metadata={"help": "Codec of the chosen and rejected clips, which must be Dia's own."},
    )
    beta: Annotated[float, Gt(0)] = field(
        default=0.1, metadata={"help": "DPO's beta, above 0: the higher, the closer to the base."}
    )
    learning_rate: float = 1e-5
    per_device_train_batch_size: int = 2
    remove_unused_columns: bool = False
    label_names: list[str] | None = field(default_factory=lambda: ["codes"])


class DiaDPOTrainer(Trainer, transformers.Trainer):  # type: ignore[misc]
    """Train Dia to prefer the chosen clip of each pair: `--plugin dia_dpo`.

    The loss is DPO's sigmoid loss (Rafailov et al. 2023); the reference is the base, with the
    adapter off. The log-probability of a clip is the sum over all codebooks of its frames and its
    end frame. Unusable pairs are left out and counted.
    """

    Config = DiaDPOConfig
    default_run = "dia"
    task = "text-to-speech"
    auto_class = "AutoModelForSpeechSeq2Seq"
    columns = frozenset(("prompt", *_SIDES))
    uses_validation_rows = True
    refused_settings: ClassVar = {
        "label_smoothing_factor": ("has no effect on this trainer's loss.", "Leave it out."),
        "remove_unused_columns": ("would remove the pairs.", "Leave it out."),
        "label_names": ("has no effect on pairs.", "Leave it out."),
    }
    method = Method(
        "DPO on speech in parallel codebooks",
        tags=("dia_dpo", "dpo", "text-to-speech"),
        citations=(
            "Rafailov et al. 2023, Direct Preference Optimization, arXiv:2305.18290",
            "Nari Labs 2025, Dia, https://github.com/nari-labs/dia",
        ),
        summary="The loss is DPO's, on pairs of clips of the same text.",
    )
    held_out_metrics: ClassVar = {
        "margin": "log-probability of the chosen minus the rejected clip, in nats",
        "pair_accuracy": "share of pairs with a margin above 0",
        "chosen_log_prob": "log-probability of the chosen clip for each of its frames, in nats",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterator[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        if (kind := distributed_type(run.training)) in ("DEEPSPEED", "FSDP"):
            what = f"is {kind}, which dia_dpo has not been made for: Dia has no single embedding."
            yield Problem("launch", what, "Use DDP (`--multi_gpu`), or one process.")
        kwargs = run.training.gradient_checkpointing_kwargs or {}
        if kwargs.get("use_reentrant"):
            what = "has `use_reentrant`, with which a frozen base passes no gradient on."
            yield Problem("activation_checkpointing_kwargs", what, "Leave it out.")
        if run.adapter is not None:
            what = "is set, but the reference would be the base without it."
            yield Problem("adapter", what, "Merge it into the base, and train a new one.")
        if not run.model.use_peft:
            what = "is false: the reference is the base with the adapter off, so one is needed."
            yield Problem("use_peft", what, "Write `use_peft: true`.")
        yield from _codec_problems(run)

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the number of pairs usable for training or evaluation."""
        fix = f"Are they written in `codec: {run.training.codec}`?"
        return {
            name: RowCounts(len(rows), unusable_pairs(run, rows), fix=fix)
            for name, rows in splits(run)
        }

    @classmethod
    def card_facts(cls, run: Run) -> Mapping[str, str]:
        """Return the codec."""
        return {"Speech": settings_line(vars(run.training), "codec")}

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        from peft import get_peft_model

        arguments = load_policy(run)
        model, lora = arguments["model"], arguments["peft_config"]
        lora.task_type = None  # Dia is no causal language model
        validation = validation_rows(run)
        trainer = cls(
            model=get_peft_model(model, lora),
            args=run.training,
            train_dataset=usable_pairs(run, run.dataset["train"]),
            eval_dataset=None if validation is None else usable_pairs(run, validation),
            # Not `processing_class`, from which transformers sets the model's padding token.
            data_collator=collate,
            callbacks=list(run.callbacks),
        )
        # The loss is a mean over the pairs of a micro-batch.
        trainer.loss_is_scaled_for_ga = False
        trainer.seen = defaultdict(list)
        return trainer

    seen: dict[str, list[torch.Tensor]]
    """Metrics of the pairs since the last log: name -> a value for each micro-batch."""

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the mean loss of a batch of pairs."""
        base = self.accelerator.unwrap_model(model)
        chosen, rejected = pair_log_probs(model, base.config, inputs)
        with torch.no_grad(), base.disable_adapter():
            base_chosen, base_rejected = pair_log_probs(base, base.config, inputs)
        margins = self.args.beta * ((chosen - base_chosen) - (rejected - base_rejected))
        if model.training:
            self.seen["rewards/margins"].append(margins.detach().mean())
            self.seen["rewards/accuracies"].append((margins.detach() > 0).float().mean())
        loss = -logsigmoid(margins).mean()
        return (loss, {"margins": margins}) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the metrics of the pairs beside the loss, under the names of TRL's DPO."""
        if "loss" in logs:
            for name, values in self.seen.items():
                mean = self.accelerator.gather(torch.stack(values).mean()[None]).mean()
                logs[name] = mean.item()
            self.seen.clear()
        super().log(logs, start_time)

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return each held-out pair's margin; None for an unusable pair."""
        read, size = _reader(run), run.training.per_device_eval_batch_size

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float | None]]:
            pairs = [read(row) for row in rows]
            scores = iter(_measured(dia, [pair for pair in pairs if not isinstance(pair, str)]))
            nothing: dict[str, float | None] = dict.fromkeys(cls.held_out_metrics)
            return [nothing if isinstance(pair, str) else next(scores) for pair in pairs]

        with saved_model(run, model, model_kwargs) as dia:
            return measure_rows(held_out_rows(run), measure, batch_size=size)


def pair_log_probs(
    model: Any, config: Any, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return the log-probabilities of the chosen and of the rejected clips, both (pairs,)."""
    decoder = config.decoder_config
    return delayed_log_probs(
        model,
        inputs["codes"],
        inputs["lengths"],
        config.delay_pattern,
        start=decoder.bos_token_id,
        pad=decoder.pad_token_id,
        conditions={"input_ids": inputs["text"], "attention_mask": inputs["mask"]},
    ).chunk(2)


@torch.inference_mode()
def _measured(model: Any, pairs: Sequence[Pair]) -> list[dict[str, float | None]]:
    if not pairs:
        return []
    inputs = {name: value.to(model.device) for name, value in collate(pairs).items()}
    chosen, rejected = (each.tolist() for each in pair_log_probs(model, model.config, inputs))
    frames = inputs["lengths"][: len(pairs)].tolist()
    return [
        {
            "margin": one - other,
            "pair_accuracy": float(one > other),
            "chosen_log_prob": one / count,
        }
        for one, other, count in zip(chosen, rejected, frames, strict=True)
    ]


def collate(pairs: Sequence[Pair]) -> dict[str, torch.Tensor]:
    """Return `text` and its `mask` [2 pairs, tokens], `codes` [2 pairs, codebooks, frames] and
    `lengths` [2 pairs], with the chosen clips first.
    """
    clips = [pair[side] for side in _SIDES for pair in pairs]
    texts = [pair["text"] for pair in pairs] * 2
    return {
        "text": pad_sequence(texts, batch_first=True),
        "mask": pad_sequence([torch.ones_like(text) for text in texts], batch_first=True),
        "codes": pad_sequence(clips, batch_first=True).transpose(1, 2),
        "lengths": torch.tensor([len(clip) for clip in clips]),
    }


def _reader(run: Run) -> Callable[[Mapping[str, Any]], Pair | str]:
    """Return the function from a row to a pair, or to the reason why it is unusable."""
    config, codec = model_config(run), load_codec(run.training.codec)
    decoder, tokens = config.decoder_config, config.encoder_config.max_position_embeddings
    frames = decoder.max_position_embeddings - max(config.delay_pattern) - 1

    def read(row: Mapping[str, Any]) -> Pair | str:
        texts = [text_of(row[side]) for side in _SIDES]
        clips = [codec.form.read(text, codec.codebooks, codec.size) for text in texts]
        if any(not len(codes) or "wrong tokens" in problems for codes, problems in clips):
            return "a clip without speech in the codec"
        if texts[0] == texts[1]:
            return "both clips the same"
        prompt = torch.tensor(run.tokenizer(text_of(row["prompt"])).input_ids)
        if len(prompt) > tokens:
            return f"a text over the model's {tokens} tokens"
        if max(len(codes) for codes, _ in clips) > frames:
            return f"a clip over the model's {frames} frames"
        end = decoder.eos_token_id
        ended = [pad(torch.from_numpy(codes), (0, 0, 0, 1), value=end) for codes, _ in clips]
        return {"text": prompt, **dict(zip(_SIDES, ended, strict=True))}

    return read


def usable_pairs(run: Run, rows: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """Return the usable training rows in Dia's input form."""
    return [pair for pair in map(_reader(run), rows) if not isinstance(pair, str)]


def unusable_pairs(run: Run, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of unusable rows by reason."""
    return dict(Counter(pair for pair in map(_reader(run), rows) if isinstance(pair, str)))


def _codec_problems(run: Run) -> Iterator[Problem]:
    config, name = model_config(run), run.training.codec
    if config.model_type != "dia":
        what = f"is a {config.model_type}, and this trainer trains Dia."
        yield Problem("model_name_or_path", what, "Other models of speech: `speech_dpo`, `dpo`.")
        return
    if problems := name_problems(name):
        yield from problems
        return
    codec, decoder = load_codec(name), config.decoder_config
    theirs = decoder.num_channels, decoder.eos_token_id
    if (codec.codebooks, codec.size) != theirs:
        yield Problem(
            "codec",
            f"{name!r} has {codec.codebooks} codebooks of {codec.size}; the model has {theirs[0]} "
            f"of {theirs[1]}.",
            "Name the codec that the model was trained with.",
        )
