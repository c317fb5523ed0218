"""What a sweep has shown: means over seeds and rows with intervals, differences, one table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile
from hf_rlhf.errors import RunFolderError
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.evaluation.statistics import CrossedInterval, crossed_mean, holm
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.sweep_grid import Cell

METHOD = (
    "Means are over seeds and held-out prompts (a prompt's completions averaged first). Intervals "
    "are 95%, for other seeds and other prompts: seeds and prompts are crossed random effects, "
    "t with Satterthwaite's degrees of freedom (Hillis 2007). Differences are paired by seed and "
    "prompt. A prompt that some run could not score is left out of that line."
)
ONE_SEED = (
    "Where there is one seed, the interval is over prompts alone: it says nothing of another seed."
)


@dataclass(frozen=True)
class Finished:
    """What one finished run measured."""

    seed: int
    rows: Mapping[str, Sequence[float | None]]
    """Score of each held-out prompt, by metric."""
    before: Mapping[str, float]
    """Mean before training."""
    packages: Mapping[str, str]
    seconds: float | None = None
    """Wall time."""


@dataclass(frozen=True)
class Line:
    """One metric of one cell."""

    metric: str
    cell: Cell
    before: float | None
    after: CrossedInterval
    by_seed: Mapping[int, float]
    left_out: int
    """Prompts that not every seed's run could score."""
    difference: CrossedInterval | None = None
    """Against the reference cell; None for that cell, and where the two cannot be compared."""
    p_holm: float | None = None
    why_not: str = ""
    """Why there is no difference."""
    seconds: float | None = None
    """Mean wall time of the cell's finished runs."""

    def as_json(self) -> dict[str, Any]:
        """Return the line's numbers."""
        return {
            "before": self.before,
            "after": self.after.as_json(),
            "by_seed": {str(seed): mean for seed, mean in self.by_seed.items()},
            "prompts_left_out": self.left_out,
            "difference": self.difference.as_json() if self.difference else None,
            "p_holm": self.p_holm,
            "not_compared": self.why_not or None,
        }


@dataclass(frozen=True)
class Measured:
    """A cell with what its finished runs measured."""

    cell: Cell
    values: Mapping[str, Any]
    """The run file's values with the cell's own."""
    held_out: str | None
    """Tells the held-out rows from others."""
    runs: Sequence[Finished] = field(default_factory=tuple)


def read_finished(
    folder: Path, seed: int, record: RunRecord, seconds: float | None
) -> Finished | None:
    """Return what the finished run in `folder` measured; None if it measured nothing.

    Raises RunFolderError when its evaluation cannot be read.
    """
    section = record.evaluation
    if section is None or not section.after:
        return None
    # Of what the rewards score, and of what the trainer measures itself.
    kept = [folder / "evaluation" / name for name in ("after.json", "after_held_out.json")]
    found = [Evaluation.load(path) for path in kept if path.exists()]
    measured = [evaluation for evaluation in found if evaluation.rows]
    if section.after.keys() - {name for one in measured for name in one.metrics()}:
        raise RunFolderError(
            f"{folder} has finished, but of {' and '.join(str(path) for path in kept)} one is "
            f"missing. Put it back, or delete {folder}: the same sweep runs it again."
        )
    rows = {name: values for one in measured for name, values in _by_row(one).items()}
    before = {
        name: estimate.mean
        for name, estimate in (section.before or {}).items()
        if estimate.mean is not None
    }
    return Finished(seed, rows, before, record.environment.packages, seconds)


def _by_row(evaluation: Evaluation) -> dict[str, list[float | None]]:
    """Return each metric's values, the completions of one prompt averaged."""
    size = evaluation.completions_per_prompt
    return {
        name: [
            _mean([row[name] for row in evaluation.rows[at : at + size]])
            for at in range(0, len(evaluation.rows), size)
        ]
        for name in evaluation.metrics()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def lines_of(cells: Sequence[Measured], metric: str) -> list[Line]:
    """Return one line for each cell that measured `metric`; the first cell is the reference."""
    if not cells:
        return []
    reference = cells[0]
    lines = [line for cell in cells if (line := _line(cell, reference, metric)) is not None]
    found = {
        at: line.difference.p
        for at, line in enumerate(lines)
        if line.difference is not None and line.difference.p is not None
    }
    for at, p in zip(found, holm(list(found.values())), strict=True):
        lines[at] = replace(lines[at], p_holm=p)
    return lines


def _line(cell: Measured, reference: Measured, metric: str) -> Line | None:
    runs = _scored(cell, metric)
    table, left_out = _table([run.rows[metric] for run in runs])
    if not table:
        return None
    before = [run.before[metric] for run in runs if metric in run.before]
    line = Line(
        metric,
        cell.cell,
        sum(before) / len(before) if before else None,
        crossed_mean(table),
        {run.seed: sum(row) / len(row) for run, row in zip(runs, table, strict=True)},
        left_out,
        seconds=_mean([run.seconds for run in runs]),
    )
    if cell is reference:
        return line
    if why := incomparable(reference, cell, metric):
        return replace(line, why_not=why)
    other = {run.seed: run.rows[metric] for run in _scored(reference, metric)}
    pairs = [(run.rows[metric], other[run.seed]) for run in runs if run.seed in other]
    differences, _ = _table([[_minus(a, b) for a, b in zip(*pair, strict=True)] for pair in pairs])
    if not differences:
        missing = "prompt has a score" if pairs else "seed is finished"
        return replace(line, why_not=f"no {missing} in both")
    return replace(line, difference=crossed_mean(differences))


def _scored(cell: Measured, metric: str) -> list[Finished]:
    """Return the runs that could score some prompt by `metric`."""
    return [
        run for run in cell.runs if any(value is not None for value in run.rows.get(metric, ()))
    ]


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _table(rows: Sequence[Sequence[float | None]]) -> tuple[list[list[float]], int]:
    """Return the columns that every row has a number in, and how many others there are."""
    columns = list(zip(*rows, strict=True))
    whole = [column for column in columns if None not in column]
    table = [[float(value) for value in row] for row in zip(*whole, strict=True)]
    return table, len(columns) - len(whole)


def incomparable(one: Measured, other: Measured, metric: str) -> str:
    """Say why `metric` of two cells is not one measurement, or nothing if it is.

    A sweep may vary the yardstick itself: a total with another weight is another quantity, and
    a higher number of it no improvement.
    """
    if one.held_out != other.held_out:
        return "measured on other rows"
    if (one.values.get("evaluation") or {}) != (other.values.get("evaluation") or {}):
        return "evaluated otherwise"
    if _yardstick(one.values, metric) != _yardstick(other.values, metric):
        return "another yardstick"
    return ""


def _yardstick(values: Mapping[str, Any], metric: str) -> Any:
    """Return the part of a run file that decides what `metric` means."""
    judges = values.get("judges") or {}
    parts = [*(values.get("rewards") or []), *(values.get("gates") or [])]
    if metric == TOTAL:
        return parts, judges
    for label, part in zip(labels_of(values), parts, strict=True):
        if label == metric:
            beside = ("weight", "on_none", "clip", "threshold", "label")
            own = {key: value for key, value in part.items() if key not in beside}
            asked = part.get("judge")
            return own, judges.get(asked) if asked else judges
    return None  # lengths and the like, which nothing can vary


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """Return the labels of a run file's rewards and gates."""
    parts = [*(values.get("rewards") or []), *(values.get("gates") or [])]
    return [part.get("label") or str(part.get("name")).rpartition("/")[2] for part in parts]


def metrics_of(cells: Sequence[Measured]) -> list[str]:
    """Return every metric that some run measured, the total first."""
    return list(dict.fromkeys(name for cell in cells for run in cell.runs for name in run.rows))


def shown_metrics(cells: Sequence[Measured], asked: Sequence[str]) -> list[str]:
    """Return the metrics for the table: those asked for, or the total.

    Where the total is not one measurement in all cells, every metric that is stands beside it.
    Raises RunFolderError for a metric that no run has.
    """
    known = metrics_of(cells)
    if missing := [name for name in asked if known and name not in known]:
        raise RunFolderError(
            f"No run measured {', '.join(missing)}. `--metric` takes: {', '.join(known)}."
        )
    if asked:
        return list(asked)
    reference = cells[0] if cells else None
    clear = [
        name
        for name in known
        if reference and not any(incomparable(reference, cell, name) for cell in cells[1:])
    ]
    return [TOTAL] if TOTAL in clear else [name for name in known if name in (TOTAL, *clear)]


def values_of(base: RunFile, cell: Cell) -> Mapping[str, Any]:
    """Return the base's values with a cell's own."""
    return base.override(cell.options).values


def packages_of(cells: Sequence[Measured]) -> tuple[dict[str, str], list[str]]:
    """Return the packages that the runs ran with, and those that differ between them."""
    every = [run.packages for cell in cells for run in cell.runs]
    names = sorted({name for packages in every for name in packages})
    versions = {name: sorted({str(packages.get(name)) for packages in every}) for name in names}
    mixed = [f"{name}: {', '.join(found)}" for name, found in versions.items() if len(found) > 1]
    return {name: found[0] for name, found in versions.items() if len(found) == 1}, mixed
