"""The plots of a study: means with intervals and seeds, and curves of training."""

from pathlib import Path
from typing import Any

from hf_rlhf.cards import png_panels, step_curve
from hf_rlhf_studies.estimates import Estimate
from hf_rlhf_studies.results import Results

PANELS = 6


def draw(results: Results, folder: Path) -> list[str]:
    """Write the plots that there is something for; return their names."""
    names = []
    for block in results.study.file.blocks:
        ending = f"-{block}" if block else ""
        if results.conditions(block):
            names += _means(results, block, folder / f"changes{ending}.png")
            names += _curves(results, block, folder / f"curves{ending}.png")
    return names


def _means(results: Results, block: str, path: Path) -> list[str]:
    """Draw each metric's change over the start, or its value where there is no start."""
    metrics = results.metrics(block)[:PANELS]
    conditions = results.conditions(block)
    size = (4.2, 0.8 + 0.28 * len(conditions))
    caption = "change over the start; lines: 95% bootstrap; ticks: seeds"
    with png_panels(path, len(metrics), size, caption=caption) as panels:
        for axes, metric in zip(panels, metrics, strict=True):
            labels: list[str] = []
            for name in reversed(conditions):
                gain = results.gain(block, name, metric)
                if (estimate := gain or results.of(block, name, metric)) is not None:
                    _draw_estimate(axes, len(labels), estimate)
                    labels.append(results.study.label(name) + ("" if gain else " (value)"))
            axes.axvline(0, color="#999999", lw=0.8)
            axes.set_yticks(range(len(labels)), labels, fontsize=8)
            axes.set_title(metric, fontsize=10)
    return [path.name]


def _draw_estimate(axes: Any, height: int, estimate: Estimate) -> None:
    axes.plot([estimate.low, estimate.high], [height, height], color="C0", lw=2)
    axes.plot(estimate.mean, height, "o", color="C0", ms=5)
    seeds = list(estimate.by_seed.values())
    axes.plot(seeds, [height + 0.25] * len(seeds), "|", color="C1", ms=6)


def _curves(results: Results, block: str, path: Path) -> list[str]:
    """Draw what runs logged while training, a line for each seed."""
    curves: dict[str, list[Any]] = {}
    for cell, content in results.cells.items():
        if cell.block == block and len(content.get("curve") or ()) > 1:
            curves.setdefault(cell.condition, []).append(content["curve"])
    if not curves:
        return []
    caption = "optimizer step; what the trainer logs, a line for each seed"
    with png_panels(path, len(curves), (2.6, 2.0), across=4, caption=caption) as panels:
        for axes, (name, lines) in zip(panels, curves.items(), strict=True):
            for line in lines:
                step_curve(axes, line, color="C0", lw=0.9, alpha=0.7)
            axes.set_title(results.study.label(name), fontsize=8)
    return [path.name]
