"""Compare two answers to a prompt by a common score or by a judge."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_rlhf.contracts import Judge, Question
from hf_rlhf_classic.evaluation.estimators import LOSS, TIE, WIN, outcome
from hf_rlhf_classic.evaluation.spec import PLACEHOLDER, Compare

_BETTER = (
    "It is a better answer to the prompt than the other answer, which stands beside the prompt in "
    "the context, by this yardstick: {criterion} Fully met: the candidate is the better one. In "
    "part: the two are equally good. Not met: the other answer is better."
)


@dataclass(frozen=True)
class Pair:
    """Two answers to a single prompt, with their scores by label and the row's columns."""

    prompt: str
    answer: str
    other: str
    scores: Mapping[str, float | None] = field(default_factory=dict)
    other_scores: Mapping[str, float | None] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """The better answer of each pair, and the judge's verdicts in both orders."""

    outcomes: Sequence[float | None]
    """1 for the answer, 0.5 for a tie, 0 for the other, None if not judged."""
    orders: Sequence[tuple[float, float]] = ()
    """The judge's preference for the candidate in [0, 1], for each pair judged in both orders: with
    the answer as the candidate, and with the other."""


def compare(pairs: Sequence[Pair], by: Compare, judges: Mapping[str, Judge]) -> Compared:
    """Decide every pair. Raises JudgeError if the judge stays down."""
    if by.by != "judge":
        return Compared([outcome(pair.scores[by.by], pair.other_scores[by.by]) for pair in pairs])
    return _both_orders(pairs, by, judges[str(by.judge)])


def _both_orders(pairs: Sequence[Pair], by: Compare, judge: Judge) -> Compared:
    """Ask twice, with either answer as the candidate; a judge that changes its mind gives a tie.

    Zheng et al. (2023), "Judging LLM-as-a-judge", section 3.4. Equal answers are not judged.
    """
    questions = []
    for pair in pairs:
        criterion = _BETTER.replace("{criterion}", fill(by.criterion, pair.columns))
        for candidate, other in ((pair.answer, pair.other), (pair.other, pair.answer)):
            context = f"The prompt:\n{pair.prompt}\n\nThe other answer:\n{other}"
            if candidate != other:
                questions.append(Question("quality", candidate, criterion, context, label="eval"))
    verdicts = iter(asyncio.run(judge.judge(questions)) if questions else ())
    outcomes: list[float | None] = []
    orders = []
    for pair in pairs:
        if pair.answer == pair.other:
            outcomes.append(TIE)
            continue
        first, second = next(verdicts).score, next(verdicts).score
        if first is None or second is None:
            outcomes.append(None)
            continue
        orders.append((first, second))
        outcomes.append(_agreed(first, second))
    return Compared(outcomes, orders)


def _agreed(first: float, second: float) -> float:
    """Return the outcome of both orders: `first` prefers the answer above 0.5, `second` the other.

    A tie if they disagree.
    """
    if first > 0.5 and second < 0.5:
        return WIN
    return LOSS if first < 0.5 and second > 0.5 else TIE


def position_bias(orders: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Return the effect of an answer's position, for pairs judged in both orders.

    `bias` is the share of verdicts for the candidate minus the share for the answer in the context:
    0 for a judge that ignores position, 1 for a judge that considers nothing else. `inconsistent`
    is the share of pairs with opposite winners in the two orders.
    """
    if not orders:
        return None
    scores = np.array(orders)
    candidate = np.sign(scores - 0.5)
    return {
        "bias": float(candidate.mean()),
        "inconsistent": float((candidate.prod(axis=1) > 0).mean()),
    }


def fill(criterion: str, columns: Mapping[str, Any]) -> str:
    """Return a criterion with each `{column}` replaced by the row's value."""
    return PLACEHOLDER.sub(lambda match: str(columns.get(match[1], match[0])), criterion)
