"""The table of a sweep in the terminal and as Markdown, and its plot."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from hf_rlhf import RunFolderError
from hf_rlhf.cards import duration, interval, number
from hf_rlhf.rewards import TOTAL
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_studies.estimates import Estimate, adjusted
from hf_rlhf_studies.folder import StudyFolder
from hf_rlhf_studies.plots import by_value
from hf_rlhf_studies.report import p_value, table
from hf_rlhf_studies.results import Results
from hf_rlhf_studies.study import Cell

HEADINGS = (
    *("metric", "cell", "seeds", "before", "after [95%]", "minus the first [95%]", "p (Holm)"),
    "time a run",
)
METHOD = (
    "Means are over seeds and held-out prompts (a prompt's completions averaged first). Intervals "
    "are 95%, for other seeds and other prompts: seeds and prompts are crossed random effects, "
    "t with Satterthwaite's degrees of freedom (Hillis 2007). Differences are paired by seed and "
    "prompt. A prompt that some run could not score is left out of that line."
)
ONE_SEED = (
    "Where there is one seed, the interval is over prompts alone: it says nothing of another seed."
)
TABLE_NAME, PLOT_NAME = "sweep.md", "sweep.png"


@dataclass(frozen=True)
class Line:
    """One metric of one cell."""

    metric: str
    condition: str
    label: str
    after: Estimate
    before: float | None
    """Mean before training."""
    difference: Estimate | None
    """From the first cell; None for that cell, and where the two cannot be compared."""
    why_not: str
    """Why there is no difference."""
    seconds: float | None
    """Mean wall time of the cell's runs."""
    p_holm: float | None = None


def write_table(results: Results, folder: StudyFolder, metrics: Sequence[str]) -> list[Line]:
    """Write `sweep.md` and, where one number was varied, `sweep.png`; print the table.

    Raises RunFolderError for a metric that no run measured.
    """
    from rich.console import Console

    lines = [line for name in _shown(results, metrics) for line in lines_of(results, name)]
    keys = list(
        dict.fromkeys(key for condition in _conditions(results) for key in condition.settings)
    )
    values = [condition.settings.get(keys[0]) for condition in _conditions(results)]
    drawn = bool(lines) and len(keys) == 1 and all(map(_is_number, values))
    (folder.out / PLOT_NAME).unlink(missing_ok=True)
    if drawn:
        settings = results.study.file.conditions
        points = [
            (
                float(settings[line.condition].settings[keys[0]]),
                line.metric,
                line.after,
                line.before,
            )
            for line in lines
        ]
        by_value(points, keys[0], folder.out / PLOT_NAME)
    atomic_write_text(folder.out / TABLE_NAME, markdown(results, folder, lines, drawn))
    console = Console()
    if lines:
        console.print(_terminal_table(lines, f"{results.study.file.title}: held-out results"))
        for note in notes(lines):
            console.print(f"- {note}", style="dim", markup=False, highlight=False)
    print(f"table: {folder.out / TABLE_NAME}")
    return lines


def _conditions(results: Results) -> list[Any]:
    return list(results.study.file.conditions.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(results: Results, metrics: Sequence[str]) -> list[str]:
    """Return the metrics for the table: those named, or the total.

    Where the total is not one measurement in all cells, every metric that is stands beside it.
    """
    known = sorted(results.metrics(""), key=lambda name: name != TOTAL)
    if missing := [name for name in metrics if known and name not in known]:
        raise RunFolderError(
            f"No run measured {', '.join(missing)}. `--metric` takes: {', '.join(known)}."
        )
    if metrics:
        return list(metrics)
    first, *others = results.study.file.conditions
    measured = [name for name in others if results.seeds("", name)]
    same = [
        metric
        for metric in known
        if not any(results.incomparable("", first, name, metric) for name in measured)
    ]
    return [TOTAL] if TOTAL in same else [name for name in known if name in (TOTAL, *same)]


def lines_of(results: Results, metric: str) -> list[Line]:
    """Return one line for each cell that measured a metric; the first cell is the reference."""
    names = results.study.file.conditions
    lines = [line for name in names if (line := _line(results, name, metric)) is not None]
    p_values = adjusted([line.difference.p if line.difference else None for line in lines])
    return [replace(line, p_holm=p) for line, p in zip(lines, p_values, strict=True)]


def _line(results: Results, condition: str, metric: str) -> Line | None:
    after = results.of("", condition, metric)
    if after is None:
        return None
    reference = str(results.study.file.reference)
    before = results.values("", condition, metric, before=True)
    start = results.estimate(before, "", condition, metric) if before else None
    cells = [results.cells[Cell("", condition, seed)] for seed in results.seeds("", condition)]
    seconds = [cell["seconds"] for cell in cells if cell.get("seconds") is not None]
    difference, why = None, ""
    if condition != reference:
        why = results.incomparable("", reference, condition, metric)
        if not why:
            difference = results.difference("", condition, reference, metric)
            why = "" if difference else "no seed with a score in both"
    return Line(
        metric=metric,
        condition=condition,
        label=results.study.label(condition),
        after=after,
        before=None if start is None else start.mean,
        difference=difference,
        why_not=why,
        seconds=fmean(seconds) if seconds else None,
    )


def rows_of(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """Return the table's rows as text, under `HEADINGS`."""
    return [
        (
            line.metric,
            line.label,
            str(len(line.after.by_seed)),
            "-" if line.before is None else number(float(line.before)),
            _interval(line.after),
            (line.why_not or "first")
            if line.difference is None
            else _interval(line.difference, signed=True),
            "-" if line.p_holm is None else p_value(line.p_holm),
            "-" if line.seconds is None else duration(line.seconds),
        )
        for line in lines
    ]


def _interval(estimate: Estimate, *, signed: bool = False) -> str:
    content = {"mean": estimate.mean, "low": estimate.t_low, "high": estimate.t_high}
    rows = estimate.clusters - estimate.left_out
    return interval({**content, "n": len(estimate.by_seed) * rows}, signed=signed)


def _terminal_table(lines: Sequence[Line], title: str) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rich_table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in HEADINGS:
        justify: Any = "left" if heading in ("metric", "cell") else "right"
        rich_table.add_column(heading, justify=justify, overflow="fold", no_wrap=justify == "left")
    previous = None
    for row in rows_of(lines):
        if previous not in (None, row[0]):
            rich_table.add_section()
        previous = row[0]
        rich_table.add_row(*row)
    return rich_table


def notes(lines: Sequence[Line]) -> list[str]:
    """Return what a reader of the table must know: method, comparisons, what is not compared."""
    result = [METHOD]
    if any(len(line.after.by_seed) == 1 for line in lines):
        result.append(ONE_SEED)
    if tested := [line for line in lines if line.p_holm is not None]:
        metrics = len({line.metric for line in tested})
        result.append(
            f"{len(tested)} comparisons with the first cell over {metrics} metric"
            f"{'s' * (metrics != 1)}; p is adjusted for those of one metric (Holm 1979), the "
            "intervals are not."
        )
    for why in sorted({line.why_not for line in lines if line.why_not}):
        names = ", ".join(dict.fromkeys(line.metric for line in lines if line.why_not == why))
        result.append(f"{names}: not compared, {_explained(why)}")
    for line in lines:
        if line.after.left_out:
            prompts = f"{line.after.left_out} prompt{'s' * (line.after.left_out != 1)}"
            result.append(f"{line.metric}, {line.label}: {prompts} left out.")
    return result


def _explained(why: str) -> str:
    if why == "another standard":
        return (
            "for what is varied decides what it measures. To compare the cells by one standard, "
            "add a reward with `weight: 0` that no `--vary` touches."
        )
    return f"{why}."


def markdown(results: Results, folder: StudyFolder, lines: Sequence[Line], drawn: bool) -> str:
    """Return `sweep.md`."""
    runs = folder.runs
    statuses = folder.statuses(runs.tasks(runs.study.cells()))
    parts = [f"# {results.study.file.title}", "", *_varied(results)]
    if lines:
        parts += ["## Results", "", *table(HEADINGS, rows_of(lines), 2)]
        parts += [f"- {note}" for note in notes(lines)] + [""]
    if drawn:
        parts += [f"![Means with 95% intervals by value]({PLOT_NAME})", ""]
    rows = []
    for status in statuses:
        assert status.task.cell is not None
        seconds = (folder.state.get("seconds") or {}).get(status.task.step)
        title, seed = runs.study.label(status.task.cell.condition), str(status.task.cell.seed)
        time = "-" if seconds is None else duration(seconds)
        rows.append([title, seed, status.state, time, status.task.cell.folder])
    parts += ["## Runs", "", *table(("cell", "seed", "status", "time", "folder"), rows, 5)]
    failed = [item for item in statuses if item.why]
    parts += [f"- {item.task.step}: {item.why}" for item in failed] + [""] * bool(failed)
    parts += ["## Commands", "", "```sh", shlex.join(["hf-rlhf", *folder.state["command"]])]
    parts += ["", "# each run:"]
    parts += [shlex.join(runs.run_command(cell)) for cell in runs.study.cells()]
    parts += ["```", "", "## Packages", ""]
    text = ", ".join(f"{name} {version}" for name, version in results.packages.items())
    return "\n".join([*parts, text or "No run has finished.", ""])


def _varied(results: Results) -> list[str]:
    conditions = _conditions(results)
    result = ["Every run has these keys set, and a seed:", ""]
    for key in dict.fromkeys(key for condition in conditions for key in condition.settings):
        values = dict.fromkeys(
            str(condition.settings[key]) for condition in conditions if key in condition.settings
        )
        result.append(f"- `{key}`: {', '.join(values)}")
    seeds = results.study.file.seeds
    return [*result, f"- `seed`: {', '.join(map(str, seeds))}", ""]


def labels_of(values: Mapping[str, Any]) -> list[str]:
    """Return the labels of a run file's rewards and gates."""
    parts = [*(values.get("rewards") or []), *(values.get("gates") or [])]
    return [part.get("label") or str(part.get("name")).rpartition("/")[2] for part in parts]
