"""Direct preference optimization, on TRL's public surface alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from trl import DPOConfig, DPOTrainer

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows, measure_rows, saved_model
from hf_rlhf.models import policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import (
    can_encode,
    check_single_kind,
    choice,
    common_problems,
    no_lengths,
    training_rows,
    within_positions,
)
from hf_rlhf_classic.encoding import encode_pair
from hf_rlhf_classic.likelihood import Likelihood, Metrics, batch_size, likelihoods
from hf_rlhf_classic.reference import drop_reference
from hf_rlhf_classic.row_lengths import SIDES, longer_texts, preference_counts
from hf_rlhf_classic.tokens_seen import TokensSeen

LOSS_TYPES = (
    *("sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair"),
    *("sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft"),
)
DIVERGENT = frozenset(
    {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"}
)
"""Losses that go with an `f_divergence_type`."""


class PreferenceTrainer(Trainer, DPOTrainer):  # type: ignore[misc]
    """Direct preference optimization (Rafailov et al. 2023) on pairs: `--plugin dpo`.

    The reference is where training starts: with a new LoRA the base with the adapter off, with a
    continued one (`adapter`) a frozen copy of it, with full fine-tuning a second copy of the
    weights. Held-out pairs are measured by the policy's own likelihood of the two responses.
    """

    Config = DPOConfig
    default_run = "tiny"
    columns = frozenset({"prompt", "chosen", "rejected"})
    method = Method(
        "DPO",
        tags=("trl", "dpo"),
        citations=("Rafailov et al. 2023, Direct Preference Optimization, arXiv:2305.18290",),
    )
    held_out_metrics: ClassVar = {
        "preference_accuracy": "share of pairs whose chosen response is likelier; a tie is half",
        "preference_margin": "log-probability of the chosen less that of the rejected one, in nats",
        "chosen_log_prob": "log-probability of the chosen response, in nats",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield what would stop or spoil training, before weights load."""
        result = [*common_problems(run), *_settings(run)]
        if can_encode(run, "prompt", *SIDES):
            result += check_single_kind(run, "prompt", *SIDES)
            result += _lengths(run) if not result else ()
        return result

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return of how many pairs both responses are trained on, or measured, and cut."""
        return preference_counts(run)

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this is where the weights are loaded."""
        trainer = cls(
            **policy_arguments(run),
            args=run.training,
            train_dataset=training_rows(run, "prompt", *SIDES),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
        )
        trainer.add_callback(TokensSeen(trainer))
        trainer.given = len(run.dataset["train"])
        return trainer

    given: int
    """How many training pairs there were before any was left out."""

    def report(self) -> Mapping[str, Any]:
        """Return how many pairs were trained on, and how many responses were cut."""
        most, remaining = self.args.max_length, len(self.train_dataset)
        cut = 0
        if most is not None:
            lengths = self.train_dataset.select_columns(
                ["prompt_ids", *(f"{s}_ids" for s in SIDES)]
            )
            cut = sum(
                len(row["prompt_ids"]) + max(len(row[f"{side}_ids"]) for side in SIDES) > most
                for row in lengths
            )
        rows = {
            "given": self.given,
            "prompt over max_length, left out": self.given - remaining,
            "a response cut at max_length": cut,
            "trained on": remaining,
        }
        return {"Training pairs": rows}

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter or weights, without the frozen copy that is the reference."""
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            drop_reference(output_dir or self.args.output_dir)

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return which response of each pair the policy finds likelier, and by how much.

        `preference_margin` is log p(chosen) - log p(rejected), in nats. What training adds to it,
        times beta, is the margin of DPO's implicit rewards, as the base is the reference.
        `chosen_log_prob` shows where both became less likely.
        """
        training = run.training

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
            texts = [
                item.cut(training.max_length, training.truncation_mode)
                for row in rows
                for item in encode_pair(run.tokenizer, row, SIDES)
            ]
            result = likelihoods(policy, texts, run.tokenizer)
            return [_metrics(*result[index : index + 2]) for index in range(0, len(result), 2)]

        with saved_model(run, model, model_kwargs) as policy:
            return measure_rows(held_out_rows(run), measure, batch_size=batch_size(run))


def _metrics(chosen: Likelihood, rejected: Likelihood) -> Metrics:
    if not (chosen.log_probs and rejected.log_probs):  # the prompt alone fills max_length
        return dict.fromkeys(("preference_accuracy", "preference_margin", "chosen_log_prob"))
    margin = chosen.total - rejected.total
    return {
        "preference_accuracy": 0.5 if margin == 0 else float(margin > 0),
        "preference_margin": margin,
        "chosen_log_prob": chosen.total,
    }


def loss_problems(run: Run) -> Iterator[Problem]:
    """Yield what TRL refuses only when it has loaded the weights, or in the first step."""
    training = run.training
    losses, divergence = set(training.loss_type), training.f_divergence_type
    yield from choice(run, "loss_type", LOSS_TYPES)
    if not losses:
        yield Problem("loss_type", "is an empty list.", f"Known: {', '.join(LOSS_TYPES)}.")
    if training.beta == 0:
        yield Problem("beta", "is 0, so no pair says anything.", "Write a number above 0.")
    if divergence != "reverse_kl" and (others := losses - DIVERGENT):
        yield Problem(
            "f_divergence_type", f"{divergence} does not go with {', '.join(sorted(others))}."
        )
    if training.use_weighting and (sorted_ := losses & {"aot", "aot_unpaired"}):
        yield Problem("use_weighting", f"does not go with {', '.join(sorted(sorted_))}.")
    if "exo_pair" in losses and training.label_smoothing == 0:
        yield Problem("label_smoothing", "is 0, and exo_pair needs it.", "Its paper has 1e-3.")
    if training.padding_free:
        yield Problem("padding_free", "is not done by this version of TRL.", "Leave it out.")


def _settings(run: Run) -> Iterator[Problem]:
    """What TRL refuses only when it has loaded the weights."""
    training = run.training
    yield from loss_problems(run)
    yield from no_lengths(run)
    if training.sync_ref_model and training.precompute_ref_log_probs:
        yield Problem(
            "precompute_ref_log_probs",
            "is for a reference that stays as it is, and `sync_ref_model` moves it.",
            "Use one of the two.",
        )


def _lengths(run: Run) -> Iterator[Problem]:
    """What is left within `max_length` fits the model."""
    yield from within_positions(run, lambda split, rows: longer_texts(run, split, rows))
