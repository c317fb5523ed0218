"""Shared code of DPO, ORPO and CPO: check and measure pairs of responses."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from hf_rlhf import RowCounts, Trainer
from hf_rlhf.contracts import StepShape
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import Evaluation
from hf_rlhf.models import FOR_TEMPLATES
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems, with_row_problems
from hf_rlhf_classic.encoding import Encoded, encode_pair
from hf_rlhf_classic.implicit_rewards import LogProbs, Texts, log_probs, reference_log_probs
from hf_rlhf_classic.likelihood import Metrics
from hf_rlhf_classic.row_lengths import (
    SIDES,
    longer_texts,
    longest_text,
    preference_counts,
    truncation_mode,
)


class PairTraining(Trainer):
    """A trainer on pairs. List it before TRL's: `class MyTrainer(PairTraining, DPOTrainer)`."""

    columns = frozenset({"prompt", *SIDES})
    uses_validation_rows = True
    for_templates: ClassVar[Collection[str]] = FOR_TEMPLATES
    """Columns that TRL passes to the chat template."""
    held_out_metrics: ClassVar = {
        "implicit_accuracy": "share of pairs whose chosen response has the higher implicit reward, "
        "`beta` times what training added to its log-probability; a tie is half",
        "implicit_margin": "implicit reward of the chosen minus the rejected response",
        "preference_accuracy": "share of pairs whose chosen response is likelier; a tie is half",
        "preference_margin": "log-probability of the chosen minus the rejected response, in nats",
        "chosen_log_prob": "log-probability of the chosen response, in nats",
    }

    @classmethod
    def setting_problems(cls, run: Run) -> Iterator[Problem]:
        """Yield the settings that TRL would refuse only once the weights are loaded."""
        yield from ()

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        problems = [*common_problems(run, cls.for_templates), *cls.setting_problems(run)]
        return with_row_problems(run, problems, ("prompt", *SIDES), partial(longer_texts, run))

    @classmethod
    def row_counts(cls, run: Run) -> Mapping[str, RowCounts]:
        """Return the number of pairs with both responses, and how many of them are truncated."""
        return preference_counts(run)

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the tokens of the longest row."""
        return StepShape(tokens=longest_text(run))

    @classmethod
    def implicit_rewards(cls, run: Run, rows: Sequence[LogProbs]) -> list[list[float]]:
        """Return the implicit rewards of the chosen and the rejected response of each pair."""
        references, beta = reference_log_probs(run, pair_texts(run)), run.training.beta
        return [
            [beta * ((row[side] or 0.0) - (reference[side] or 0.0)) for side in SIDES]
            for row, reference in zip(rows, references, strict=True)
        ]

    @classmethod
    def held_out(cls, run: Run, model: Any, model_kwargs: Mapping[str, Any]) -> Evaluation:
        """Return the policy's preferred response of each pair, with the margin.

        `implicit_margin` is the difference of the implicit rewards. `preference_margin` is log
        p(chosen) - log p(rejected), in nats. `chosen_log_prob` shows whether both became less
        likely.
        """
        rows = log_probs(run, model, model_kwargs, pair_texts(run))
        return Evaluation(list(map(_metrics, rows, cls.implicit_rewards(run, rows))))


def pair_texts(run: Run) -> Texts:
    """Return the function from a pair to the tokens of its sides, truncated as in training."""
    most, mode = run.training.max_length, truncation_mode(run.training)

    def texts(row: Mapping[str, Any]) -> dict[str, Encoded]:
        pair = encode_pair(run.tokenizer, row, SIDES)
        return {side: text.cut(most, mode) for side, text in zip(SIDES, pair, strict=True)}

    return texts


def _metrics(row: LogProbs, rewards: Sequence[float]) -> Metrics:
    chosen, rejected = (row[side] for side in SIDES)
    if chosen is None or rejected is None:  # the prompt alone fills max_length
        return dict.fromkeys(PairTraining.held_out_metrics)
    return {
        "implicit_accuracy": _accuracy(*rewards),
        "implicit_margin": rewards[0] - rewards[1],
        "preference_accuracy": _accuracy(chosen, rejected),
        "preference_margin": chosen - rejected,
        "chosen_log_prob": chosen,
    }


def _accuracy(chosen: float, rejected: float) -> float:
    return 0.5 if chosen == rejected else float(chosen > rejected)
