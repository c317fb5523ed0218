"""The plot of a study: means with intervals and seeds."""

from pathlib import Path
from typing import Any

from hf_rlhf.cards import png_panels
from hf_rlhf_studies.estimates import Estimate
from hf_rlhf_studies.results import Results

PANELS = 6
"""Of each block."""


def draw(results: Results, folder: Path) -> list[str]:
    """Write `changes.png`, each metric's change over the start, or its value without a start."""
    blocks = [block for block in results.study.file.blocks if results.conditions(block)]
    pairs = [(block, metric) for block in blocks for metric in results.metrics(block)[:PANELS]]
    if not pairs:
        return []
    size = (4.2, 0.8 + 0.28 * max(len(results.conditions(block)) for block in blocks))
    caption = "change over the start; lines: 95% bootstrap; ticks: seeds"
    with png_panels(folder / "changes.png", len(pairs), size, caption=caption) as panels:
        for axes, (block, metric) in zip(panels, pairs, strict=True):
            labels: list[str] = []
            for name in reversed(results.conditions(block)):
                gain = results.gain(block, name, metric)
                if (estimate := gain or results.of(block, name, metric)) is not None:
                    _draw_estimate(axes, len(labels), estimate)
                    labels.append(results.study.label(name) + ("" if gain else " (value)"))
            axes.axvline(0, color="#999999", lw=0.8)
            axes.set_yticks(range(len(labels)), labels, fontsize=8)
            axes.set_title(f"{block}: {metric}" if block else metric, fontsize=10)
    return ["changes.png"]


def _draw_estimate(axes: Any, height: int, estimate: Estimate) -> None:
    axes.plot([estimate.low, estimate.high], [height, height], color="C0", lw=2)
    axes.plot(estimate.mean, height, "o", color="C0", ms=5)
    seeds = list(estimate.by_seed.values())
    axes.plot(seeds, [height + 0.25] * len(seeds), "|", color="C1", ms=6)
