"""Draw the curves of a run from its record, for the card."""

import io
import math
import os
from collections.abc import Mapping
from typing import Any

from hf_rlhf.cards.facts import optimisation, series
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.files import atomic_write_bytes
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import Estimate, EvaluationSection

# Okabe and Ito (2008): told apart by colour-blind readers, and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
INK = "#222222"
MAX_COMPONENTS = 6
MAX_CURVES = 6


def reward_curve(record: RunRecord, path: str | os.PathLike[str]) -> bool:
    """Draw reward over optimizer steps, and held-out reward before and after, as a PNG.

    Left: the mean total with a band of one standard deviation over completions, and the mean of
    each component that has a weight. Right: held-out means with their 95% intervals. Either half
    is left out when it was not measured. Return False, writing nothing, when neither was.
    """
    history = record.training.history
    total = series(history, f"rewards/{TOTAL}/mean")
    evaluation = record.evaluation or EvaluationSection()
    stages = {"before": evaluation.before or {}, "after": evaluation.after or {}}
    held_out = {
        name: stage[TOTAL]
        for name, stage in stages.items()
        if TOTAL in stage and stage[TOTAL].mean is not None
    }
    if len(total) < 2 and not held_out:
        return False

    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    both = len(total) >= 2 and bool(held_out)
    figure = Figure(figsize=(9, 3.8) if both else (7, 3.8), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    # One scale for both: a held-out gain must not look larger than the same gain in training.
    axes = figure.subplots(
        *(1, 2 if both else 1),
        squeeze=False,
        sharey=True,
        width_ratios=(2.6, 1) if both else None,
    )[0]
    if len(total) >= 2:
        _draw_training(axes[0], record, history, total)
    if held_out:
        _draw_held_out(axes[-1], evaluation, held_out)
    _write(figure, path)
    return True


def _draw_training(
    axes: Any, record: RunRecord, history: Any, total: list[tuple[int, float]]
) -> None:
    steps = [step for step, _ in total]
    means = [value for _, value in total]
    spread = dict(series(history, f"rewards/{TOTAL}/std"))
    parts = [part for part in record.reward.rewards if part.weight and part.label != TOTAL]
    for colour, part in zip(COLOURS[1:], parts[:MAX_COMPONENTS], strict=False):
        points = series(history, f"rewards/{part.label}/mean")
        if points and len(parts) > 1:
            label = f"{part.label} (× {part.weight:g})"
            axes.plot(*zip(*points, strict=True), color=colour, lw=1.3, label=label)
    low = [mean - spread.get(step, 0.0) for step, mean in total]
    high = [mean + spread.get(step, 0.0) for step, mean in total]
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.15, lw=0)
    axes.plot(steps, means, color=COLOURS[0], lw=2.2, label="total (band: ± 1 std)")
    axes.set_xlabel("training step")
    axes.set_ylabel("reward per completion")
    axes.set_title("Training", loc="left", color=INK, fontsize=11)
    axes.legend(frameon=False, fontsize=8, loc="best")
    axes.set_xlim(steps[0], steps[-1])
    calm(axes)


def _draw_held_out(
    axes: Any, evaluation: EvaluationSection, held_out: Mapping[str, Estimate]
) -> None:
    for x, (name, estimate) in enumerate(held_out.items()):
        colour = COLOURS[0] if name == "after" else COLOURS[-1]
        mean = estimate.mean
        assert mean is not None, "those without are left out"
        error = None
        if estimate.low is not None and estimate.high is not None:
            error = [[mean - estimate.low], [estimate.high - mean]]
        axes.errorbar([x], [mean], yerr=error, fmt="o", color=colour, capsize=6, lw=2, ms=7)
        axes.annotate(
            f"{mean:.3f}",
            (x, mean),
            xytext=(11, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=10,
        )
    axes.set_xticks(range(len(held_out)), list(held_out))
    axes.set_xlim(-0.5, len(held_out) - 0.25)
    axes.margins(y=0.15)
    rows = evaluation.rows
    if axes.get_subplotspec().is_first_col():
        axes.set_ylabel("reward per completion")
    of = f", {rows} rows" if rows is not None else ""
    axes.set_title(f"Held out{of}", loc="left", color=INK, fontsize=11)
    axes.set_xlabel("training (bars: 95%)")
    calm(axes)


def training_curves(record: RunRecord, path: str | os.PathLike[str]) -> bool:
    """Draw what the trainer logged of itself (loss, KL, entropy, ...) over the steps, as a PNG.

    A panel for each of the first `MAX_CURVES` rows of the card's table that were logged more
    than once and are not always the same. Return False, writing nothing, when there is none.
    """
    history = record.training.history
    facts = optimisation(history, record.reward)["rows"]
    curves = [(row["name"], series(history, row["name"])) for row in facts]
    curves = [(name, points) for name, points in curves if len({y for _, y in points}) > 1]
    curves = curves[:MAX_CURVES]
    if not curves:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(len(curves), 3)
    down = math.ceil(len(curves) / across)
    figure = Figure(figsize=(3.4 * across, 2.4 * down), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (name, points) in zip(panels, curves, strict=False):
        axes.plot(*zip(*points, strict=True), color=COLOURS[0], lw=1.6)
        axes.set_title(name, loc="left", color=INK, fontsize=10)
        axes.set_xlabel("training step", fontsize=9)
        calm(axes)
    for axes in panels[len(curves) :]:
        axes.set_axis_off()
    _write(figure, path)
    return True


def _write(figure: Any, path: str | os.PathLike[str]) -> None:
    picture = io.BytesIO()
    # Without a version or a date, the same record gives the same bytes.
    figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())


def calm(axes: Any) -> None:
    """Take out of a plot what is not data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.grid(axis="y", color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
