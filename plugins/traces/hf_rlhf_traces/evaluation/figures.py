"""The pictures of an analysis. PNG, each readable alone: what, of how many, with what interval."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards import COLOURS, INK, calm
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_traces.evaluation.analysis import JUDGED_BY, Analysed, Groups
from hf_rlhf_traces.evaluation.intervals import Estimate
from hf_rlhf_traces.evaluation.metrics import METRICS, SAID, Metric, metrics_of
from hf_rlhf_traces.evaluation.results import means

_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_WIDTH = 0.36
"""Of the part of an axis, 1 wide, over which models are spread, so that bars do not overlap."""


def overview(analysed: Analysed, path: Path) -> None:
    """Draw the mean of each metric from 0 to 1, a panel for each task, a colour for each model."""
    found = {
        task: {label: means(task, by[task]) for label, by in analysed.scored.items()}
        for task in analysed.tasks
    }
    shown = {
        task: [
            one
            for one in metrics_of(task)
            if one.bounded and any(by[one.name] for by in found[task].values())
        ]
        for task in analysed.tasks
    }
    models = list(analysed.scored)
    most = max(len(some) for some in shown.values())
    height = 1.3 + most * max(0.3, 0.16 * len(models))
    figure = _figure(5.6 * len(shown), height)
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (task, metrics) in zip(panels, shown.items(), strict=True):
        for place, label in enumerate(models):
            points = [found[task][label][one.name] for one in metrics]
            where = [at + _shift(place, len(models)) for at in range(len(metrics))]
            _points(axes, where, points, place, label, across=False)
        counts = [_count([by[one.name] for by in found[task].values()]) for one in metrics]
        names = [f"{_titled(one)}  {n}" for one, n in zip(metrics, counts, strict=True)]
        axes.set_yticks(range(len(metrics)), names)
        axes.set_ylim(most - 0.5, -0.5)
        axes.set_xlim(-0.03, 1.03)
        questions = analysed.results["data"][task]["questions"]
        axes.set_xlabel(f"mean, {questions} questions (bars: 95%)", fontsize=9)
        _title(axes, SAID[task].capitalize())
        calm(axes)
        axes.grid(axis="x", color="#e6e6e6", lw=0.8)
        axes.grid(axis="y", visible=False)
    _legend(figure, panels[0], len(models))
    _write(figure, path)


def groups(found: Groups, path: Path) -> bool:
    """Draw the metrics of a task over its groups, a panel each, a colour for each model.

    Return False, writing nothing, where there are fewer than two groups: there is no trend.
    """
    if len(found.names) < 2:
        return False
    metrics = [
        METRICS[name]
        for name in JUDGED_BY[found.task]
        if any(part[name] for parts in found.means.values() for part in parts)
    ]
    columns = 3 if len(metrics) > 4 else min(len(metrics), 2)
    rows = math.ceil(len(metrics) / columns)
    figure = _figure(max(3.1, 0.95 * len(found.names)) * columns + 0.4, 2.6 * rows + 0.8)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, metric in zip(panels, metrics, strict=False):
        _group_panel(axes, found, metric)
    for axes in panels[len(metrics) :]:
        axes.set_axis_off()
    figure.suptitle(
        f"{SAID[found.task].capitalize()}: by {found.by} (bars: 95%)",
        x=0.01,
        ha="left",
        color=INK,
        fontsize=11,
    )
    _legend(figure, panels[0], len(found.means))
    _write(figure, path)
    return True


def _group_panel(axes: Any, found: Groups, metric: Metric) -> None:
    models = list(found.means)
    for place, label in enumerate(models):
        points = [part[metric.name] for part in found.means[label]]
        where = [at + _shift(place, len(models)) for at in range(len(points))]
        _points(axes, where, points, place, label, across=True)
    counts = [
        _count([found.means[label][at][metric.name] for label in models])
        for at in range(len(found.names))
    ]
    labels = [f"{name}\n{n}" for name, n in zip(found.names, counts, strict=True)]
    axes.set_xticks(range(len(found.names)), labels)
    axes.set_xlim(-0.5, len(found.names) - 0.5)
    axes.set_ylim(-0.04, 1.04)
    axes.set_xlabel(found.by, fontsize=9)
    _title(axes, metric.title)
    calm(axes)
    axes.tick_params(axis="x", labelsize=8)


def _points(
    axes: Any,
    where: Sequence[float],
    found: Sequence[Estimate | None],
    place: int,
    label: str,
    *,
    across: bool,
) -> None:
    """Draw means with their intervals; a line through them where they are an order (`across`)."""
    # A gap stays a gap, and no line leads over it.
    positions = list(where)
    values = [math.nan if one is None else one.mean for one in found]
    below = [0.0 if one is None else one.mean - _or(one.low, one.mean) for one in found]
    above = [0.0 if one is None else _or(one.high, one.mean) - one.mean for one in found]
    # Rounding may put a mean outside its interval by a hair.
    bars = [[max(0.0, one) for one in side] for side in (below, above)]
    x, y = (positions, values) if across else (values, positions)
    style: Mapping[str, Any] = {
        "color": COLOURS[place % len(COLOURS)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "label": label,
    }
    line = "-" if across else "none"
    error = {"yerr": bars} if across else {"xerr": bars}
    drawn = axes.errorbar(
        x, y, **error, ls=line, lw=1.2, elinewidth=1.4, ms=5, capsize=2.5, **style
    )
    drawn[0].set_alpha(0.95)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _shift(place: int, count: int) -> float:
    """Where a model stands beside the middle of its part."""
    return 0.0 if count == 1 else _WIDTH * (place / (count - 1) - 0.5)


def _count(found: Sequence[Estimate | None]) -> str:
    counts = sorted({one.n if one else 0 for one in found})
    return f"n={counts[0]}" if len(counts) == 1 else f"n={counts[0]}–{counts[-1]}"


def _titled(metric: Metric) -> str:
    return metric.title + (" (lower is better)" if metric.better == "lower" else "")


def _figure(width: float, height: float) -> Any:
    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _title(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", color=INK, fontsize=10)


def _legend(figure: Any, axes: Any, models: int) -> None:
    if models > 1:
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(models, 5), frameon=False
        )


def _write(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    # Without a version or a date, the same scores give the same bytes.
    figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())
