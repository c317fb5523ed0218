"""The frontier: mean reward over KL from the reference, a point for each model."""

import io
import os
from collections.abc import Mapping
from typing import Any

from hf_rlhf.cards import COLOURS, INK, calm
from hf_rlhf.rewards import TOTAL
from hf_rlhf.storage import atomic_write_bytes


def frontier(evaluation: Mapping[str, Any], path: str | os.PathLike[str]) -> bool:
    """Draw reward (y) over KL per sequence (x, nats, k1) with 95% intervals, as a PNG.

    The reference stands at 0. Return False, writing nothing, when no model has both.
    """
    points = points_of(evaluation)
    if not any(kl["mean"] for _, kl, _ in points):
        return False
    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.4), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, kl, reward) in enumerate(points):
        colour = COLOURS[index % len(COLOURS)]
        axes.errorbar(
            [kl["mean"]],
            [reward["mean"]],
            xerr=_bars(kl),
            yerr=_bars(reward),
            fmt="o",
            color=colour,
            capsize=4,
            lw=1.5,
            ms=7,
        )
        axes.annotate(
            name,
            (kl["mean"], reward["mean"]),
            xytext=(8, 7),
            textcoords="offset points",
            color=colour,
            fontsize=10,
        )
    axes.set_xlabel(f"KL from {evaluation['reference']}, nats per sequence")
    axes.set_ylabel("mean reward, held out")
    rows = evaluation["data"]["rows"]
    axes.set_title(
        f"Reward for drift, {rows} prompts (bars: 95%)", loc="left", color=INK, fontsize=11
    )
    axes.margins(x=0.15, y=0.15)
    calm(axes)
    picture = io.BytesIO()
    # Without a version or a date, the same evaluation gives the same bytes.
    figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())
    return True


def points_of(evaluation: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return name, KL and reward, each an interval, of every model that has both."""
    zero = {"mean": 0.0, "low": 0.0, "high": 0.0}
    points = []
    for name, result in evaluation["results"].items():
        kl = result["kl"]["k1"]["per_sequence"] if result["kl"] else None
        kl = zero if name == evaluation["reference"] else kl
        reward = result["metrics"].get(TOTAL)
        if kl is not None and reward is not None:
            points.append((name, kl, reward))
    return points


def _bars(interval: Mapping[str, float]) -> list[list[float]]:
    # Rounding may put a mean of equal values outside its interval by a hair.
    low = max(0.0, interval["mean"] - interval["low"])
    return [[low], [max(0.0, interval["high"] - interval["mean"])]]
