"""The plots of a study: means with intervals and seeds, and curves of training."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards import COLOURS, INK, calm
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_studies.estimates import Estimate
from hf_rlhf_studies.results import Results

PANELS = 6


def draw(results: Results, folder: Path) -> list[str]:
    """Write the plots that there is something for; return their names."""
    names = []
    for block in results.study.file.blocks:
        ending = f"-{block}" if block else ""
        if _conditions(results, block):
            names += _means(results, block, folder / f"changes{ending}.png")
            names += _curves(results, block, folder / f"curves{ending}.png")
    return names


def _conditions(results: Results, block: str) -> list[str]:
    return list(dict.fromkeys(cell.condition for cell in results.cells if cell.block == block))


def _means(results: Results, block: str, path: Path) -> list[str]:
    """Draw each metric's change over the start, or its value where there is no start."""
    metrics = results.metrics(block)[:PANELS]
    conditions = _conditions(results, block)
    figure, panels = panels_of(len(metrics), 4.2, 0.8 + 0.28 * len(conditions))
    for axes, metric in zip(panels, metrics, strict=False):
        labels: list[str] = []
        for name in reversed(conditions):
            gain = results.gain(block, name, metric)
            if (result := gain or results.of(block, name, metric)) is not None:
                _draw_estimate(axes, len(labels), result)
                labels.append(results.study.label(name) + ("" if gain else " (value)"))
        axes.axvline(0, color="#999999", lw=0.8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.set_title(metric, loc="left", fontsize=10)
        calm(axes)
    figure.supxlabel("change over the start; lines: 95% bootstrap; ticks: seeds", fontsize=8)
    save(figure, path)
    return [path.name]


def _draw_estimate(axes: Any, height: int, estimate: Estimate) -> None:
    axes.plot([estimate.low, estimate.high], [height, height], color=COLOURS[0], lw=2)
    axes.plot(estimate.mean, height, "o", color=COLOURS[0], ms=5)
    seeds = list(estimate.by_seed.values())
    axes.plot(seeds, [height + 0.25] * len(seeds), "|", color=COLOURS[1], ms=6)


def _curves(results: Results, block: str, path: Path) -> list[str]:
    """Draw what runs logged while training, a line for each seed."""
    curves = {
        name: [
            cell["curve"]
            for at, cell in results.cells.items()
            if (at.block, at.condition) == (block, name) and len(cell.get("curve") or ()) > 1
        ]
        for name in _conditions(results, block)
    }
    known = {name: lines for name, lines in curves.items() if lines}
    if not known:
        return []
    across = min(len(known), 4)
    figure, panels = panels_of(len(known), 2.6, 2.0, across)
    for axes, (name, lines) in zip(panels, known.items(), strict=False):
        for line in lines:
            axes.plot(*zip(*line, strict=True), color=COLOURS[0], lw=0.9, alpha=0.7)
        axes.set_title(results.study.label(name), loc="left", fontsize=8)
        calm(axes)
    figure.supxlabel("optimizer step; what the trainer logs, a line for each seed", fontsize=8)
    save(figure, path)
    return [path.name]


def panels_of(count: int, width: float, height: float, across: int = 3) -> tuple[Any, Any]:
    """Return a figure with panels of a size in inches; those beyond `count` are empty."""
    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max(min(count, across), 1)
    rows = max(math.ceil(count / columns), 1)
    size = (width * columns + 0.6, height * rows + 0.3)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in panels[count:]:
        axes.set_axis_off()
    return figure, panels


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG; the same numbers give the same bytes."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())


def by_value(
    points: Sequence[tuple[float, str, Estimate, float | None]], key: str, path: Path
) -> None:
    """Draw each metric over the values of one number that was varied.

    A point is the value, the metric, its estimate, and its mean before training. Bars are 95% t
    intervals, dots the seeds, the dashed line the mean before training.
    """
    metrics = list(dict.fromkeys(metric for _, metric, _, _ in points))[:PANELS]
    figure, panels = panels_of(len(metrics), 3.6, 3.0)
    for axes, metric in zip(panels, metrics, strict=False):
        chosen = sorted((point for point in points if point[1] == metric), key=lambda item: item[0])
        x = [value for value, _, _, _ in chosen]
        means = [estimate.mean for _, _, estimate, _ in chosen]
        error = [
            [estimate.mean - estimate.t_low for _, _, estimate, _ in chosen],
            [estimate.t_high - estimate.mean for _, _, estimate, _ in chosen],
        ]
        axes.errorbar(x, means, yerr=error, fmt="o-", color=COLOURS[0], capsize=5, lw=1.6, ms=6)
        for value, _, estimate, _ in chosen:
            seeds = list(estimate.by_seed.values())
            axes.plot([value] * len(seeds), seeds, ".", color=COLOURS[1], ms=5, zorder=3)
        before = [mean for _, _, _, mean in chosen]
        if None not in before:
            axes.plot(x, before, "--", color=COLOURS[-1], lw=1)
        if min(x) > 0 and max(x) / min(x) >= 100:
            axes.set_xscale("log")
        axes.set_xlabel(key.rpartition(".")[2], color=INK)
        axes.set_title(metric, loc="left", fontsize=10)
        calm(axes)
    figure.supxlabel("bars: 95%; dots: seeds; dashed: before training", fontsize=8, color=INK)
    save(figure, path)
