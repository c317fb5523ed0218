"""What the cells of a study measured, row by row, as `rows.parquet` keeps it."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import read_table, write_table

from hf_rlhf import RunFolderError
from hf_rlhf.evaluation import Evaluation
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import digest
from hf_rlhf.storage import RECORD_NAME, atomic_file
from hf_rlhf_studies.estimates import Estimate, Values, estimate, paired
from hf_rlhf_studies.folder import StudyFolder, record_of
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Cell, Study

ROWS_NAME = "rows.parquet"
SCHEMA = 1
_NUMBERS = pa.list_(pa.float64())
COLUMNS = pa.schema(
    {"cell": "str", "metric": "str", "before": _NUMBERS, "after": _NUMBERS, "other": "str"}
)
TEXTS = ["cell", "metric", "other"]
"""`other` is JSON: what else is known of the cell, the same in all its rows."""
DECIMALS = 6
"""Of the values in `rows.parquet`. Tables are made of those, so that anybody gets the same."""
_NOT_IN_STANDARD = ("weight", "on_none", "clip", "transform", "threshold", "label")


class Results:
    """The measured cells of a study, by block, condition and seed."""

    def __init__(self, study: Study, content: Mapping[str, Any]) -> None:
        self.study = study
        self.plan: Mapping[str, str] | None = content.get("plan")
        self.packages: Mapping[str, Any] = content.get("packages") or {}
        cells = content["cells"]
        self.cells = {cell: cells[cell.folder] for cell in study.cells() if cell.folder in cells}
        self.missing = [cell for cell in study.cells() if cell.folder not in cells]
        self._estimates: dict[tuple[str, ...], Estimate | None] = {}

    def of_condition(self, block: str, condition: str) -> dict[int, Mapping[str, Any]]:
        """Return the cells of a condition by seed."""
        wanted = (block, condition)
        return {
            cell.seed: content
            for cell, content in self.cells.items()
            if (cell.block, cell.condition) == wanted
        }

    def conditions(self, block: str) -> list[str]:
        """Return the conditions of which a block has a cell."""
        return list(dict.fromkeys(cell.condition for cell in self.cells if cell.block == block))

    def metrics(self, block: str) -> list[str]:
        """Return the metrics to show, or all that some cell of a block measured."""
        cells = (content for cell, content in self.cells.items() if cell.block == block)
        measured = list(dict.fromkeys(name for content in cells for name in content["rows"]))
        chosen = self.study.file.metrics
        return [name for name in chosen if name in measured] if chosen else measured

    def values(self, block: str, condition: str, metric: str, *, before: bool = False) -> Values:
        """Return a metric's rows by seed, after training or before it."""
        section = "before" if before else "rows"
        rows = {
            seed: (content.get(section) or {}).get(metric) or ()
            for seed, content in self.of_condition(block, condition).items()
        }
        return {seed: row for seed, row in rows.items() if any(v is not None for v in row)}

    def gains(self, block: str, condition: str, metric: str) -> Values:
        """Return by how much each row rose over the condition's start, or over its own before."""
        after = self.values(block, condition, metric)
        start = self.study.file.conditions[condition].start
        if before := self.values(block, condition, metric, before=True):
            return paired(after, before)
        return paired(after, self.values(block, start, metric)) if start else {}

    def estimate(self, values: Values, block: str, condition: str, metric: str) -> Estimate | None:
        """Return the estimate of values that belong to the rows of a condition."""
        group = metric.partition("/")[0]
        cells = self.of_condition(block, condition)
        clusters: dict[int, Sequence[str]] = {}
        for seed in values:
            groups = cells[seed].get("clusters") or {}
            clusters[seed] = groups.get(group) or groups.get("", ())
        file = self.study.file
        return estimate(
            values,
            clusters if all(clusters.values()) else None,
            shared=file.held_out_rows == "shared",
            draw_seeds=file.resample == "seeds_and_rows",
        )

    def of(self, block: str, condition: str, metric: str) -> Estimate | None:
        """Return a condition's mean."""
        return self._mean(self.values, block, condition, metric)

    def gain(self, block: str, condition: str, metric: str) -> Estimate | None:
        """Return the mean of `gains`; None where there is nothing to compare with."""
        return self._mean(self.gains, block, condition, metric)

    def _mean(self, values: Callable[..., Values], *key: str) -> Estimate | None:
        name = (values.__name__, *key)
        if name not in self._estimates:
            self._estimates[name] = self.estimate(values(*key), *key)
        return self._estimates[name]

    def difference(
        self, block: str, condition: str, other: str, metric: str, *, of_gains: bool = False
    ) -> Estimate | None:
        """Return the difference of two conditions, or of their gains, paired by row."""
        values = self.gains if of_gains else self.values
        pairs = paired(values(block, condition, metric), values(block, other, metric))
        return self.estimate(pairs, block, condition, metric)

    def spread(self, block: str, conditions: Sequence[str], metric: str) -> float:
        """Return the largest difference between two seeds of any of these conditions."""
        estimates = [self.of(block, name, metric) for name in conditions]
        return max((each.spread for each in estimates if each is not None), default=0.0)

    def incomparable(self, block: str, condition: str, other: str, metric: str) -> str:
        """Say why a metric of two conditions is not the same measurement; empty if it is."""
        cells = [list(self.of_condition(block, name).values()) for name in (condition, other)]
        if not all(cells):
            return ""  # nothing is compared
        first, second = (of_seeds[0] for of_seeds in cells)
        if first.get("rows_digest") != second.get("rows_digest"):
            return "measured on other rows"
        if first.get("evaluation") != second.get("evaluation"):
            return "evaluated with other settings"
        standards = [(cell.get("standards") or {}).get(metric) for cell in (first, second)]
        return "the metric differs" if standards[0] != standards[1] else ""


def read_rows(study: Study, folder: Path) -> Results:
    """Return the results that `rows.parquet` in a folder keeps. Raises RunFolderError."""
    path = folder / ROWS_NAME
    try:
        return Results(study, read_content(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). First: hf-rlhf study run {study.source}"
        ) from error


def collect(folder: StudyFolder) -> Results:
    """Write `rows.parquet` of the cells that are done; return the results.

    A cell whose run folder was deleted is missing: its run is to be done again.
    """
    runs, study = folder.runs, folder.runs.study
    statuses = folder.chain().statuses()
    done = {status.task.step for status in statuses if status.state in ("done", "stale")}
    ending = "" if study.file.measure is None else "/measured"
    cells = {}
    for cell in study.cells():
        trained = runs.condition(cell).trained
        if f"{cell.folder}{ending}" not in done or (
            trained and not (runs.folder(cell) / RECORD_NAME).exists()
        ):
            continue
        if (content := _cell_content(runs, cell)) is not None:
            cells[cell.folder] = content
    content = {"plan": folder.plan, "packages": _packages(cells), "cells": cells}
    write_rows(content, folder.out)
    return Results(study, content)


def write_rows(content: Mapping[str, Any], folder: Path) -> None:
    """Write `rows.parquet`: each cell's metrics before and after training, a value for each row."""
    rows = []
    for name, cell in content["cells"].items():
        after, before = cell["rows"], cell.get("before") or {}
        other = json.dumps({key: cell[key] for key in cell if key not in ("rows", "before")})
        for metric in {**after, **before} or [None]:
            values = before.get(metric), after.get(metric)
            rows.append(dict(zip(COLUMNS.names, (name, metric, *values, other), strict=True)))
    head = {"schema": SCHEMA, **{key: content[key] for key in content if key != "cells"}}
    schema = COLUMNS.with_metadata({"study": json.dumps(head)})
    with atomic_file(folder / ROWS_NAME) as file:
        table = pa.Table.from_pylist(rows, schema)
        write_table(table, file, compression="zstd", compression_level=19, use_dictionary=TEXTS)


def read_content(path: Path) -> dict[str, Any]:
    """Return what `write_rows` wrote. Raises OSError, ValueError or KeyError."""
    table = read_table(path)
    content = json.loads(table.schema.metadata[b"study"])
    if content["schema"] != SCHEMA:
        raise ValueError(f"it has schema {content['schema']}, this package reads {SCHEMA}")
    cells: dict[str, Any] = {}
    for row in table.to_pylist():
        cell = cells.setdefault(row["cell"], {**json.loads(row["other"]), "rows": {}, "before": {}})
        for section, column in (("rows", "after"), ("before", "before")):
            if row[column] is not None:
                cell[section][row["metric"]] = row[column]
    return {**content, "cells": cells}


def _cell_content(runs: Runs, cell: Cell) -> dict[str, Any] | None:
    """Return the content of a cell; None of a run that measured nothing."""
    training: dict[str, Any] = {}
    if runs.condition(cell).trained:
        record = record_of(runs.folder(cell))
        training = _training(record)
        if runs.study.file.measure is None:
            held_out = _held_out(runs, cell, record)
            return held_out and {**training, **held_out}
    path = runs.beside(cell, ".measured.json")
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))
        rows = {name: rounded(values) for name, values in measured["rows"].items()}
        return {**training, **measured, "rows": rows}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise RunFolderError(
            f"{path} is not what a measurement writes ({error!r}): an object with `rows`, metric "
            "-> a list of numbers. Correct the study's `measure` commands and delete that file."
        ) from error


def rounded(values: Sequence[float | None]) -> list[float | None]:
    """Return numbers to `DECIMALS`."""
    return [None if value is None else round(float(value), DECIMALS) for value in values]


def _training(record: Mapping[str, Any]) -> dict[str, Any]:
    training, environment = record["training"], record.get("environment") or {}
    git = (environment.get("sources") or {}).get(record["plugin"].get("package")) or {}
    return {
        "commit": f"{git['commit'][:12]}{', changed' * bool(git.get('dirty'))}"
        if git.get("commit")
        else None,
        "steps": training.get("steps"),
        "training_seconds": training.get("seconds"),
        "packages": environment.get("packages") or {},
    }


def _held_out(runs: Runs, cell: Cell, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a run itself measured before and after training. Raises RunFolderError."""
    section = record.get("evaluation") or {}
    if not section.get("after"):
        return None
    folder = runs.folder(cell) / "evaluation"
    rows: dict[str, dict[str, Any]] = {"before": {}, "after": {}}
    digests = set()
    for stage, columns in rows.items():
        # Of what the rewards score, and of what the trainer measures itself.
        for path in (folder / f"{stage}.json", folder / f"{stage}_held_out.json"):
            if path.exists():
                evaluation = Evaluation.load(path)
                digests.add(evaluation.digest)
                for name in evaluation.metrics():
                    columns[name] = rounded(evaluation.column(name))
    if lost := section["after"].keys() - rows["after"].keys():
        raise RunFolderError(
            f"{folder} lacks what its run measured ({', '.join(sorted(lost))}). Put it back, or "
            f"delete {runs.folder(cell)}: the same command then runs it again."
        )
    values = runs.run_file(cell).values
    return {
        "rows": rows["after"],
        "before": rows["before"],
        "rows_digest": digest(sorted(filter(None, digests))),
        "evaluation": digest(values.get("evaluation")),
        "standards": {name: digest(standard(values, name)) for name in rows["after"]},
    }


def standard(values: Mapping[str, Any], metric: str) -> Any:
    """Return the part of a run file that decides what a metric means.

    Conditions may differ in the standard itself: a total with another weight is another quantity,
    and a higher number of it no improvement.
    """
    judges = values.get("judges") or {}
    parts = [*(values.get("rewards") or []), *(values.get("gates") or [])]
    if metric == TOTAL:
        return parts, judges
    for part in parts:
        if (part.get("label") or str(part.get("name")).rpartition("/")[2]) == metric:
            settings = {key: value for key, value in part.items() if key not in _NOT_IN_STANDARD}
            judge = part.get("judge")
            return settings, judges.get(judge) if judge else judges
    return None  # lengths and the like, which no setting changes


def _packages(cells: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Return the packages that runs ran with, `1.0 | 1.1` where they differ; taken from cells."""
    every = [cell.pop("packages", {}) for cell in cells.values()]
    names = sorted({name for packages in every for name in packages})
    return {
        name: " | ".join(sorted({packages[name] for packages in every if name in packages}))
        for name in names
    }
