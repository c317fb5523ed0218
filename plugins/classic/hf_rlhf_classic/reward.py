"""Reward models from preferences (Bradley-Terry), with TRL's public API only."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import EarlyStoppingCallback
from trl import RewardConfig, RewardTrainer

from hf_rlhf import Method, RowCounts, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation, held_out_rows, measure_rows, saved_model
from hf_rlhf.models import FOR_TEMPLATES
from hf_rlhf.runs import Run
from hf_rlhf_classic.at_end import MeasuresAtEnd
from hf_rlhf_classic.checks import common_problems, no_lengths, with_row_problems
from hf_rlhf_classic.likelihood import Metrics, batch_size
from hf_rlhf_classic.pairs import Pair, as_metrics, read_pairs, row_metrics, tables
from hf_rlhf_classic.reference import trainer_arguments
from hf_rlhf_classic.row_lengths import SIDES, longer_texts, longest_text, parts, reward_counts
from hf_rlhf_classic.tokens_seen import TokensSeen


class RewardModelTrainer(MeasuresAtEnd, Trainer, RewardTrainer):  # type: ignore[misc]
    """Train a reward model on pairs, from a base or SFT model: `--plugin reward`.

    The Bradley-Terry loss is -log sigmoid(r_chosen - r_rejected - margin), with the rows' `margin`
    column if present (Touvron et al. 2023, eq. 2), plus `center_rewards_coefficient` times
    (r_chosen + r_rejected)^2 (Eisenstein et al. 2023, eq. 2). The score is a new linear head
    without bias on the last token that is not padding. A LoRA is saved with its head. Pairs with a
    text over `max_length` tokens are left out and counted.
    """

    Config = RewardConfig
    default_run = "tiny"
    task = "text-classification"
    columns = frozenset({"prompt", "chosen", "rejected"})
    uses_validation_rows = True
    method = Method(
        "reward modelling",
        tags=("trl", "reward"),
        citations=(
            "Ouyang et al. 2022, Training language models to follow instructions with human "
            "feedback, arXiv:2203.02155",
        ),
        summary="The loss is Bradley and Terry's: -log sigmoid(chosen - rejected - margin).",
    )
    held_out_metrics: ClassVar = {
        "pair_accuracy": "share of pairs whose chosen response has the higher score; a tie is half",
        "margin": "score of the chosen minus the rejected response",
        "pair_loss": "-log sigmoid(margin)",
        "accuracy_longer_chosen": "pair_accuracy where the longer response is the chosen one",
        "accuracy_longer_rejected": "pair_accuracy where the longer response is the rejected one",
    }

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        result = [*common_problems(run, FOR_TEMPLATES), *no_lengths(run), *_margins(run)]
        lengths = partial(longer_texts, run)
        return with_row_problems(run, result, ("prompt", *SIDES), lengths, drops=True)

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the tokens of the longest row."""
        return StepShape(tokens=longest_text(run))

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the number of pairs short enough for training or evaluation."""
        return reward_counts(run)

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        trainer = cls(**trainer_arguments(run, "prompt", *SIDES, "margin"))
        trainer.add_callback(TokensSeen(trainer))
        trainer.run = run
        return trainer

    run: Run
    """The `Run` that the trainer was built from."""

    def report(self) -> Mapping[str, Any]:
        """Return where the score is read, and the results on held-out pairs."""
        read = "the last token that is not padding"
        if self.processing_class.pad_token_id == self.processing_class.eos_token_id:
            read += "; the end of sequence is padding too, so the token before it"
        return {"Score": {"read off": read}, **self.tables}

    def tables_at_end(self) -> Mapping[str, Any]:
        """Return the results on held-out pairs."""
        # A run that must stop has no time for it, and is not at its end.
        over = self.state.global_step >= self.state.max_steps or any(
            callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.run.callbacks
            if isinstance(callback, EarlyStoppingCallback)
        )
        if self.run.spec.evaluation is None or not over:
            return {}
        # A sharded model needs all processes in every step.
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        model = self.model_wrapped if sharded else self.accelerator.unwrap_model(self.model)
        model.eval()

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
            pairs = read_pairs(model, self.run.tokenizer, rows, self.args.max_length)
            return [as_metrics(pair) for pair in pairs]

        rows, size = held_out_rows(self.run), batch_size(self.run)
        result: Iterable[Mapping[str, Any]]
        if sharded:
            result = [item for part in parts(rows, size) for item in measure(part)]
        else:
            result = measure_rows(rows, measure, batch_size=size).rows
        return tables([Pair(**item) for item in result if item["chosen"] is not None])

    @classmethod
    def held_out(cls, run: Run, model: str | Path, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return each held-out pair's accuracy, margin and loss, and the effect of length.

        A model without a score head gets the initial head of training.
        """

        def measure(rows: Sequence[Mapping[str, Any]]) -> list[Metrics]:
            pairs = read_pairs(scorer, run.tokenizer, rows, run.training.max_length)
            return [row_metrics(pair) for pair in pairs]

        with saved_model(run, model, model_kwargs) as scorer:
            return measure_rows(held_out_rows(run), measure, batch_size=batch_size(run))


def _margins(run: Run) -> Iterator[Problem]:
    train = run.dataset["train"]
    if "margin" not in train.column_names:
        return
    for row, margin in enumerate(train["margin"]):
        if not isinstance(margin, (int, float)) or not math.isfinite(margin):
            yield Problem(
                "dataset",
                f"row {row} of train has the margin {margin!r}.",
                "Give every row a number, or leave the column out.",
            )
            return
