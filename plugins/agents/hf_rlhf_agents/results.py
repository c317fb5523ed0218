"""Results of agents: rows of inspect's logs, their means by category, and paired comparisons.

Means and intervals are the core's (a bootstrap over tasks, whose epochs are resampled together).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from hf_rlhf.errors import DataError
from hf_rlhf.evaluation import Interval
from hf_rlhf.scores import Score

ALL = "all"
LEVEL = 0.05


@dataclass(frozen=True)
class Row:
    """A run of an agent on a task."""

    id: str
    category: str
    epoch: int
    outcome: Score
    """None if a tool or the sandbox could not run, or the sample ended with an error."""
    process: Score
    f1: Score
    wasted: int
    calls: int
    tokens: int
    cost: float | None
    """In dollars, if inspect_ai knows the model's prices."""
    seconds: float
    answer: str
    reason: str = ""
    """Why there is no outcome."""


@dataclass(frozen=True)
class Comparison:
    """Two agents on the same tasks: an exact sign test of the tasks where they differ."""

    better: int
    """Tasks that the second agent solves more often."""
    worse: int
    tasks: int
    p: float
    """Two-sided (Conover 1999, 3.4; McNemar's exact test for a single epoch)."""
    smallest: int
    """Tasks that would have to differ in one direction for a p-value below 0.05."""


def read_log(path: str | Path) -> tuple[str, str, list[Row]]:
    """Return the agent, the model and the rows of a log of inspect_ai.

    Raises DataError for a file that is no log, or a log of other scorers.
    """
    log = open_log(path)
    return log.eval.task, log.eval.model, [row_of(sample) for sample in log.samples or []]


def open_log(path: str | Path) -> Any:
    """Return a log of inspect_ai. Raises DataError for a file that is none."""
    from inspect_ai.log import read_eval_log

    try:
        return read_eval_log(str(path))
    except Exception as error:  # noqa: BLE001 - of inspect_ai and its file formats
        raise DataError(f"{path}: not a log of inspect_ai: {error}") from error


def row_of(sample: Any) -> Row:
    """Return the row of a sample, also of another task of inspect_ai that has a single score."""
    scores = sample.scores or {}
    name = "task_outcome" if "task_outcome" in scores or len(scores) != 1 else next(iter(scores))
    if name not in scores and sample.error is None:
        raise DataError(f"sample {sample.id} has no score task_outcome, but {len(scores)} others.")
    outcome, process = scores.get(name), scores.get("task_process")
    level = sample.metadata.get("level")
    about = (process.metadata or {}) if process else {}
    usage = list(sample.model_usage.values())
    costs = [each.total_cost for each in usage]
    return Row(
        id=str(sample.id),
        category=str(sample.metadata.get("category") or (f"level {level}" if level else "")),
        epoch=sample.epoch,
        outcome=_value(outcome),
        process=_value(process),
        f1=((outcome.metadata or {}) if outcome else {}).get("f1"),
        wasted=int(about.get("wasted", 0)),
        calls=int(about.get("matched", 0) + about.get("wasted", 0)),
        tokens=sum(each.total_tokens for each in usage),
        cost=None if not costs or None in costs else sum(costs),
        seconds=float(sample.working_time or 0.0),
        answer=(outcome.answer or "") if outcome else "",
        reason=_reason(sample, outcome),
    )


def _value(score: Any) -> Score:
    value = None if score is None else {"C": 1.0, "I": 0.0}.get(str(score.value), score.value)
    return None if not isinstance(value, (int, float)) or value != value else float(value)


def _reason(sample: Any, outcome: Any) -> str:
    if sample.error is not None:
        return str(sample.error.message).splitlines()[0]
    return str(outcome.explanation or "") if outcome is not None and _value(outcome) is None else ""


def by_category(rows: Sequence[Row], name: str = "outcome") -> dict[str, Interval | None]:
    """Return the mean of a column for each category and for all rows, clustered by task."""
    groups: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.category].append(row)
        groups[ALL].append(row)
    named = [*sorted(set(groups) - {ALL}), ALL]
    return {
        each: Interval.of_mean(
            [getattr(row, name) for row in groups[each]], [row.id for row in groups[each]]
        )
        for each in named
        if groups[each]
    }


def predicts(rows: Sequence[Row]) -> Interval | None:
    """Return the correlation of process and outcome over rows, with its interval over tasks."""
    known = [row for row in rows if row.process is not None and row.outcome is not None]
    if not known:
        return None
    x, y = np.array([(row.process, row.outcome) for row in known], dtype=np.float64).T
    tasks, place = np.unique([row.id for row in known], return_inverse=True)

    def correlation(weights: Any) -> Any:
        weights = weights[:, place] / weights[:, place].sum(1, keepdims=True)
        dx, dy = (v[None] - (weights @ v)[:, None] for v in (x, y))
        both = (weights * dx * dy).sum(1)
        size = np.sqrt((weights * dx**2).sum(1) * (weights * dy**2).sum(1))
        with np.errstate(invalid="ignore"):
            return np.where(size > 1e-12, both / size, np.nan)

    return Interval.of_statistic(correlation, len(tasks))


def compare(before: Sequence[Row], after: Sequence[Row]) -> Comparison:
    """Compare two agents by the tasks that both have outcomes of.

    Raises DataError if they share none.
    """
    first, second = _means(before), _means(after)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise DataError("the two logs share no task with an outcome.")
    better = sum(second[each] > first[each] for each in shared)
    worse = sum(second[each] < first[each] for each in shared)
    p = binomtest(better, better + worse).pvalue if better + worse else 1.0
    return Comparison(better, worse, len(shared), float(p), smallest_effect(len(shared)))


def smallest_effect(tasks: int) -> int:
    """Return how many tasks must change in one direction for p < 0.05; 0 if all would not do."""
    enough = (count for count in range(1, tasks + 1) if 2 * 0.5**count < LEVEL)
    return next(enough, 0)


def _means(rows: Sequence[Row]) -> Mapping[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.outcome is not None:
            values[row.id].append(row.outcome)
    return {each: sum(found) / len(found) for each, found in values.items()}
