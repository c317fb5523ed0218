"""From the scores of samples to what `eval/results.json` says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf_traces.evaluation.claims import Claim
from hf_rlhf_traces.evaluation.intervals import FEW, Estimate, estimates
from hf_rlhf_traces.evaluation.metrics import METRICS, Task, metrics_of

FOLDER = "eval"
"""In the store."""
RESULTS = "results.json"
EXPECTED = "expected"
"""In the place of a model: the replies of the training data, as if a model had given them."""


@dataclass(frozen=True)
class Scored:
    """One reply with its metrics: a line of `scores.jsonl`."""

    id: str
    trace: str
    question_key: str
    question: str
    step: int
    steps: int
    prompt_tail: str
    prompt_tokens: int
    context_tokens: int
    expected: str
    text: str
    metrics: Mapping[str, float | None]


def means(task: Task, rows: Sequence[Scored]) -> dict[str, Estimate | None]:
    """Return the mean of each metric of a task over samples, with its interval."""
    names = [one.name for one in metrics_of(task)]
    table = {name: [row.metrics.get(name) for row in rows] for name in names}
    bounds = {name: (0.0, 1.0) for name in names if METRICS[name].bounded}
    return estimates(table, [row.question_key for row in rows], bounds)


def differences(
    task: Task, rows: Sequence[Scored], against: Sequence[Scored]
) -> dict[str, Estimate | None]:
    """Return the means of the differences `rows` - `against`, of the same samples, by metric.

    Samples that one of them lacks, or that have no value in one of them, are left out.
    """
    other = {row.id: row for row in against}
    pairs = [(row, other[row.id]) for row in rows if row.id in other]
    names = [one.name for one in metrics_of(task)]
    table = {
        name: [_minus(row.metrics.get(name), base.metrics.get(name)) for row, base in pairs]
        for name in names
    }
    bounds = {name: (-1.0, 1.0) for name in names if METRICS[name].bounded}
    return estimates(table, [row.question_key for row, _ in pairs], bounds)


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def grouped(
    task: Task, rows: Sequence[Scored], key: Callable[[Scored], Any]
) -> dict[str, dict[str, Any]]:
    """Return `means` as JSON for each value of `key`, in order."""
    groups: dict[Any, list[Scored]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {str(value): as_json(means(task, groups[value])) for value in sorted(groups)}


def as_json(found: Mapping[str, Estimate | None]) -> dict[str, Any]:
    """Return estimates as JSON; null where there is no value."""
    return {name: one.as_json() if one else None for name, one in found.items()}


def of_task(task: Task, rows: Sequence[Scored]) -> dict[str, Any]:
    """Return what `results.json` says of one model in one task."""
    return {
        "samples": len(rows),
        "questions": len({row.question_key for row in rows}),
        "metrics": as_json(means(task, rows)),
        "by_step": grouped(task, rows, lambda row: row.step),
        "by_depth": grouped(task, rows, lambda row: row.steps),
    }


def judged(
    claims: Iterable[Claim], scored: Mapping[str, Mapping[Task, Sequence[Scored]]]
) -> list[dict[str, Any]]:
    """Return the claims with their verdicts."""
    found = []
    for claim in claims:
        rows = scored[claim.better][claim.task]
        if claim.worse is None:
            made = means(claim.task, rows)
        else:
            made = differences(claim.task, rows, scored[claim.worse][claim.task])
        found.append(claim.judged(made[claim.metric]))
    return found


def few_questions(scored: Mapping[str, Mapping[Task, Sequence[Scored]]]) -> str:
    """Say that intervals are of few questions, if so."""
    counts = [
        len({row.question_key for row in rows})
        for by_task in scored.values()
        for rows in by_task.values()
    ]
    if not counts or min(counts) >= FEW:
        return ""
    return (
        f"Samples are of {min(counts)} questions only: with fewer than {FEW} the intervals are "
        "narrower than they should be."
    )
