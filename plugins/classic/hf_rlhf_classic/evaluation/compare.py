"""Which of two answers to one prompt is better: by a score that both have, or by a judge."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.contracts import Judge, Question, Verdict
from hf_rlhf_classic.evaluation.estimators import LOSS, TIE, WIN, outcome
from hf_rlhf_classic.evaluation.spec import Compare

_BETTER = (
    "It is a better answer to the prompt than the other answer, which stands beside the prompt in "
    "the context, by this yardstick: {criterion} Fully met: the candidate is the better one. In "
    "part: the two are equally good. Not met: the other answer is better."
)


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, with their scores by label and the row's columns."""

    prompt: str
    mine: str
    other: str
    my_scores: Mapping[str, float | None] = field(default_factory=dict)
    other_scores: Mapping[str, float | None] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """An outcome for each pair: 1 mine is better, 0.5 a tie, 0 the other is, None not judged."""

    outcomes: Sequence[float | None]
    orders: Sequence[tuple[float, float]] = ()
    """Of a judge shown both answers: for each judged pair, how much the answer in the candidate's
    place was preferred, in [0, 1], with mine there and with the other there."""


def compare(pairs: Sequence[Pair], by: Compare, judges: Mapping[str, Judge]) -> Compared:
    """Decide every pair. Raises JudgeError when the judge is down for longer than its patience."""
    if by.by != "judge":
        return Compared(
            [outcome(pair.my_scores[by.by], pair.other_scores[by.by]) for pair in pairs],
        )
    ask = _both_orders if by.mode == "pairwise" else _each_alone
    return ask(pairs, by, judges[str(by.judge)])


def _both_orders(pairs: Sequence[Pair], by: Compare, judge: Judge) -> Compared:
    """Ask twice, each answer once in either place; a judge that changes its mind says a tie.

    Zheng et al. (2023), "Judging LLM-as-a-judge", section 3.4. Equal answers are not asked about.
    """
    different = [index for index, pair in enumerate(pairs) if pair.mine != pair.other]
    questions = []
    for index in different:
        pair = pairs[index]
        for mine, other in ((pair.mine, pair.other), (pair.other, pair.mine)):
            context = f"The prompt:\n{pair.prompt}\n\nThe other answer:\n{other}"
            criterion = _BETTER.replace("{criterion}", filled(by.criterion, pair.columns))
            questions.append(Question("quality", mine, criterion, context, label="eval"))
    verdicts = _ask(judge, questions)
    outcomes: list[float | None] = [TIE] * len(pairs)
    orders = []
    for index, first, second in zip(different, verdicts[::2], verdicts[1::2], strict=True):
        if first.score is None or second.score is None:
            outcomes[index] = None
            continue
        orders.append((first.score, second.score))
        outcomes[index] = agreed(first.score, second.score)
    return Compared(outcomes, orders)


def agreed(first: float, second: float) -> float:
    """Return the outcome of both orders: `first` prefers mine above 0.5, `second` the other."""
    if first > 0.5 and second < 0.5:
        return WIN
    return LOSS if first < 0.5 and second > 0.5 else TIE


def position_bias(orders: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Return how far the place of an answer decides, of the pairs judged in both orders.

    `bias` is the share of verdicts for the answer in the candidate's place minus the share for the
    one in the context: 0 of a judge that is blind to the place, 1 of one that sees nothing else.
    `inconsistent` is the share of pairs in which the two orders name opposite winners.
    """
    if not orders:
        return None
    flat = [score for pair in orders for score in pair]
    candidate = sum(score > 0.5 for score in flat) - sum(score < 0.5 for score in flat)
    opposite = sum((a - 0.5) * (b - 0.5) > 0 for a, b in orders)
    return {"bias": candidate / len(flat), "inconsistent": opposite / len(orders)}


def _each_alone(pairs: Sequence[Pair], by: Compare, judge: Judge) -> Compared:
    """Grade each answer alone by the same criterion, and compare the grades."""
    questions = [
        Question("quality", text, filled(by.criterion, pair.columns), pair.prompt, label="eval")
        for pair in pairs
        for text in (pair.mine, pair.other)
    ]
    verdicts = _ask(judge, questions)
    return Compared(
        [outcome(a.score, b.score) for a, b in zip(verdicts[::2], verdicts[1::2], strict=True)]
    )


def filled(criterion: str, columns: Mapping[str, Any]) -> str:
    """Return a criterion with the row's values in the place of `{column}`."""
    return re.sub(r"\{(\w+)\}", lambda match: str(columns.get(match[1], match[0])), criterion)


def _ask(judge: Judge, questions: Sequence[Question]) -> list[Verdict]:
    return asyncio.run(judge.judge(questions)) if questions else []
