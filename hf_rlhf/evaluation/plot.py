"""The plot of a suite: points with 95% intervals, a panel per task, a colour per model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.cards.plots import png_panels

Estimate = Mapping[str, Any]
"""`mean`, `low` and `high`."""


@dataclass(frozen=True)
class Panel:
    """The content of a panel."""

    title: str
    x_title: str
    points: Sequence[tuple[str, Estimate, Estimate]]
    """Model, x and y."""
    y_title: str = ""
    ticks: Sequence[str] = ()
    """Names on the y axis, from the top, where y is a position; x then goes from 0 to 1."""


def means_panel(task: Mapping[str, Any]) -> Panel:
    """Return the mean of each bounded metric of a task, models side by side."""
    metrics = [metric for metric in task["metrics"] if metric["bounded"]]
    titles = [m["title"] + " (lower is better)" * (m["better"] == "lower") for m in metrics]
    points = []
    count = len(task["results"])
    for index, (name, entry) in enumerate(task["results"].items()):
        shift = 0.36 * (index / (count - 1) - 0.5) if count > 1 else 0.0
        for at, metric in enumerate(metrics):
            if mean := entry["means"].get(metric["name"]):
                points.append((name, mean, fixed(at + shift)))
    return Panel(task["title"].capitalize(), "mean (bars: 95%)", points, ticks=titles)


def fixed(value: float) -> Estimate:
    """Return a number without an interval as an estimate."""
    return {"mean": value, "low": value, "high": value}


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels side by side, as a PNG."""
    height = max(4.4, 1.5 + 0.45 * max(len(panel.ticks) for panel in panels))
    names = list(dict.fromkeys(name for panel in panels for name, _, _ in panel.points))
    colours = {name: f"C{at % 7}" for at, name in enumerate(names)}
    with png_panels(path, len(panels), (6.2, height)) as plots:
        for axes, panel in zip(plots, panels, strict=True):
            _draw(axes, panel, colours)


def _draw(axes: Any, panel: Panel, colours: Mapping[str, str]) -> None:
    for name, colour in colours.items():
        points = [(x, y) for other, x, y in panel.points if other == name]
        if points:
            x, y = zip(*points, strict=True)
            means = [[each["mean"] for each in axis] for axis in (x, y)]
            bars = {"xerr": _bars(x), "yerr": _bars(y), "capsize": 3}
            axes.errorbar(*means, **bars, fmt="o", ms=6, color=colour, label=name)
    axes.set(xlabel=panel.x_title, ylabel=panel.y_title, title=panel.title)
    axes.legend()
    if panel.ticks:
        axes.set_yticks(range(len(panel.ticks)), panel.ticks)
        axes.set_ylim(len(panel.ticks) - 0.5, -0.5)
        axes.set_xlim(-0.03, 1.03)
        axes.grid(axis="x")
    else:
        axes.margins(x=0.15, y=0.15)


def _bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    # Rounding may put a mean of equal values slightly outside its interval.
    return [
        [max(0.0, each["mean"] - each["low"]) for each in estimates],
        [max(0.0, each["high"] - each["mean"]) for each in estimates],
    ]
