"""The table of a sweep in the terminal and as Markdown, and its plot."""

import io
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.cards.markdown import cell as table_cell
from hf_rlhf.cards.markdown import duration, interval, number
from hf_rlhf.cards.plots import COLOURS, INK, calm
from hf_rlhf.evaluation.statistics import CrossedInterval
from hf_rlhf.storage.files import atomic_write_bytes
from hf_rlhf.sweep_report import METHOD, ONE_SEED, Line

HEADINGS = (
    *("metric", "cell", "seeds", "before", "after [95%]", "minus the first [95%]", "p (Holm)"),
    "time a run",
)
PANELS = 6


def rows_of(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """Return the table's rows as text, under `HEADINGS`."""
    return [
        (
            line.metric,
            line.cell.said,
            str(line.after.seeds),
            "-" if line.before is None else number(float(line.before)),
            _interval(line.after),
            (line.why_not or "first")
            if line.difference is None
            else _interval(line.difference, signed=True),
            "-" if line.p_holm is None else _p(line.p_holm),
            "-" if line.seconds is None else duration(line.seconds),
        )
        for line in lines
    ]


def _interval(found: CrossedInterval, *, signed: bool = False) -> str:
    return interval({**found.as_json(), "n": found.seeds * found.rows}, signed=signed)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def terminal_table(lines: Sequence[Line], title: str) -> Any:
    """Return the table as `rich` shows it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in HEADINGS:
        justify: Any = "left" if heading in ("metric", "cell") else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=justify == "left")
    previous = None
    for row in rows_of(lines):
        if previous not in (None, row[0]):
            table.add_section()
        previous = row[0]
        table.add_row(*row)
    return table


def notes(lines: Sequence[Line]) -> list[str]:
    """Return what a reader of the table must know: method, number of comparisons, yardsticks."""
    said = [METHOD]
    if any(line.after.seeds == 1 for line in lines):
        said.append(ONE_SEED)
    tested = [line for line in lines if line.p_holm is not None]
    if tested:
        metrics = len({line.metric for line in tested})
        said.append(
            f"{len(tested)} comparisons with the first cell over {metrics} metric"
            f"{'s' * (metrics != 1)}; p is adjusted for those of one metric (Holm 1979), the "
            "intervals are not."
        )
    for why in sorted({line.why_not for line in lines if line.why_not}):
        metrics_said = ", ".join(dict.fromkeys(one.metric for one in lines if one.why_not == why))
        said.append(f"{metrics_said}: not compared, {_explained(why)}")
    for line in lines:
        if line.left_out:
            prompts = f"{line.left_out} prompt{'s' * (line.left_out != 1)}"
            said.append(f"{line.metric}, {line.cell.said}: {prompts} left out.")
    return said


def _explained(why: str) -> str:
    if why == "another yardstick":
        return (
            "for what is varied decides what it measures. To compare the cells by one yardstick, "
            "add a reward with `weight: 0` that no `--vary` touches."
        )
    return f"{why}."


def markdown(state: Mapping[str, Any], lines: Sequence[Line], picture: bool) -> str:
    """Return `sweep.md`."""
    parts = [f"# Sweep of {state['name']}", "", *_varied(state)]
    if lines:
        parts += ["## Results", "", _table(HEADINGS, rows_of(lines)), ""]
        parts += [f"- {note}" for note in notes(lines)] + [""]
    if picture:
        parts += ["![Means with 95% intervals by value](sweep.png)", ""]
    parts += ["## Runs", "", _table(("cell", "seed", "status", "time", "folder"), _runs(state)), ""]
    failed = [(cell, run) for cell in state["cells"] for run in cell["runs"] if run["said"]]
    for cell, run in failed:
        parts += [f"- {cell['said']}, seed {run['seed']}: {run['said']}"]
    parts += [""] * bool(failed)
    parts += ["## Commands", "", "```sh", shlex.join(["hf-rlhf", "sweep", *state["command"]])]
    parts += ["", "# each run:"]
    parts += [shlex.join(run["command"]) for cell in state["cells"] for run in cell["runs"]]
    parts += ["```", "", "## Packages", ""]
    shown = ", ".join(f"{name} {version}" for name, version in state["packages"].items())
    parts += [shown or "No run has finished.", ""]
    if state["packages_that_differ"]:
        parts += ["Not the same in all runs: " + "; ".join(state["packages_that_differ"]), ""]
    return "\n".join(parts)


def _varied(state: Mapping[str, Any]) -> list[str]:
    said = ["Every run is `base.yaml` with these keys set, and a seed:", ""]
    for key in dict.fromkeys(key for cell in state["cells"] for key in cell["settings"]):
        values = dict.fromkeys(
            str(cell["settings"][key]) for cell in state["cells"] if key in cell["settings"]
        )
        said.append(f"- `{key}`: {', '.join(values)}")
    seeds = sorted({run["seed"] for cell in state["cells"] for run in cell["runs"]})
    said += [f"- `seed`: {', '.join(map(str, seeds))}", ""]
    return said


def _runs(state: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            cell["said"],
            str(run["seed"]),
            run["status"],
            duration(run["seconds"]) if run["seconds"] else "-",
            f"`{cell['name']}/seed-{run['seed']}`",
        )
        for cell in state["cells"]
        for run in cell["runs"]
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(map(table_cell, row)) + " |" for row in rows])


def plot(lines: Sequence[Line], key: str, path: str | os.PathLike[str]) -> None:
    """Draw each metric's mean over the values of the number `key`, as a PNG.

    Bars are 95% intervals, dots the seeds, the dashed line the mean before training.
    """
    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(line.metric for line in lines))[:PANELS]
    columns = min(len(metrics), 3)
    size = (3.6 * columns + 0.6, 3.2 * math.ceil(len(metrics) / columns))
    figure = Figure(figsize=size, dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(math.ceil(len(metrics) / columns), columns, squeeze=False).flat
    for axes, metric in zip(panels, metrics, strict=False):
        _draw(axes, [line for line in lines if line.metric == metric], key)
    for axes in list(panels)[len(metrics) :]:
        axes.set_axis_off()
    figure.supxlabel("bars: 95%; dots: seeds; dashed: before training", fontsize=8, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())


def _draw(axes: Any, lines: Sequence[Line], key: str) -> None:
    points = [(float(line.cell.settings[key]), line) for line in lines]
    points.sort(key=lambda point: point[0])
    x = [value for value, _ in points]
    means = [line.after.mean for _, line in points]
    error = [
        [line.after.mean - line.after.low for _, line in points],
        [line.after.high - line.after.mean for _, line in points],
    ]
    axes.errorbar(x, means, yerr=error, fmt="o-", color=COLOURS[0], capsize=5, lw=1.6, ms=6)
    for value, line in points:
        seeds = list(line.by_seed.values())
        axes.plot([value] * len(seeds), seeds, ".", color=COLOURS[1], ms=5, zorder=3)
    before = [line.before for _, line in points]
    if None not in before:
        axes.plot(x, before, "--", color=COLOURS[-1], lw=1)
    if min(x) > 0 and max(x) / min(x) >= 100:
        axes.set_xscale("log")
    axes.set_xlabel(key.rpartition(".")[2], color=INK)
    other = any(line.why_not for _, line in points)
    axes.set_title(
        lines[0].metric + (" (not one yardstick)" if other else ""), loc="left", fontsize=10
    )
    calm(axes)
