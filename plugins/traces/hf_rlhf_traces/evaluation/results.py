"""From the scores of samples to what `eval/results.json` says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_rlhf.evaluation import FEW, Interval, mean_intervals, minus
from hf_rlhf_traces.evaluation.metrics import Task, metrics_of
from hf_rlhf_traces.evaluation.scoring import Scored

FOLDER = "eval"
"""In the store."""
RESULTS = "results.json"
EXPECTED = "expected"
"""In the place of a model: the replies of the training data, as if a model had given them."""
METHOD = (
    "mean over samples; 95% percentile bootstrap over questions, 10000 resamples, all samples of a "
    "question together"
)

Means = dict[str, dict[str, Any] | None]
"""Metric -> mean, low, high, n (samples) and questions; None where no sample has a value."""


def means(task: Task, rows: Sequence[Scored]) -> Means:
    """Return the mean of each metric of a task over samples, with its interval."""
    columns = {
        metric.name: [row.metrics.get(metric.name) for row in rows] for metric in metrics_of(task)
    }
    return _as_json(mean_intervals(columns, [row.question_key for row in rows]))


def differences(task: Task, rows: Sequence[Scored], baseline: Sequence[Scored]) -> Means:
    """Return the means of the differences `rows` - `baseline`, paired by sample, by metric.

    Samples that one of them lacks, or that have no value in one of them, are left out.
    """
    others = {row.id: row for row in baseline}
    pairs = [(row, others[row.id]) for row in rows if row.id in others]
    columns = {
        metric.name: [
            minus(row.metrics.get(metric.name), other.metrics.get(metric.name))
            for row, other in pairs
        ]
        for metric in metrics_of(task)
    }
    return _as_json(mean_intervals(columns, [row.question_key for row, _ in pairs]))


def _as_json(intervals: Mapping[str, Interval | None]) -> Means:
    return {
        name: {**interval.as_json(), "n": interval.values, "questions": interval.n}
        if interval
        else None
        for name, interval in intervals.items()
    }


def grouped(task: Task, rows: Sequence[Scored], key: Callable[[Scored], int]) -> dict[str, Means]:
    """Return `means` for each value of `key`, in order."""
    groups: dict[int, list[Scored]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {str(value): means(task, groups[value]) for value in sorted(groups)}


def task_results(task: Task, rows: Sequence[Scored]) -> dict[str, Any]:
    """Return what `results.json` says of one model in one task."""
    return {
        "samples": len(rows),
        "questions": len({row.question_key for row in rows}),
        "metrics": means(task, rows),
        "by_step": grouped(task, rows, lambda row: row.step),
        "by_depth": grouped(task, rows, lambda row: row.steps),
    }


def few_questions(scored: Mapping[str, Mapping[Task, Sequence[Scored]]]) -> list[str]:
    """Return a note where the intervals are of few questions."""
    counts = [
        len({row.question_key for row in rows})
        for by_task in scored.values()
        for rows in by_task.values()
    ]
    if not counts or min(counts) >= FEW:
        return []
    return [
        f"Samples are of {min(counts)} questions only: with fewer than {FEW} the intervals are "
        "narrower than they should be."
    ]
