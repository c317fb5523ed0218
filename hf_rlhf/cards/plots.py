"""Draw plots as PNG files in a common style, and the curves of a run for its card."""

import io
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.cards.history import series, trainer_history
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.files import atomic_write_bytes
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import HELD_OUT, Estimate, EvaluationSection, ValidationSection

# Okabe and Ito (2008): distinct to colour-blind readers, and in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
_INK = "#222222"
_STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler('color', {_COLOURS})",
    **{f"axes.spines.{side}": False for side in ("top", "right")},
    **{"axes.edgecolor": "#888888", "axes.axisbelow": True},
    **{"axes.grid": True, "axes.grid.axis": "y", "grid.color": "#e6e6e6", "grid.linewidth": 0.8},
    **{"axes.titlelocation": "left", "axes.titlesize": 11, "axes.titlecolor": _INK},
    **{f"{axis}tick.color": _INK for axis in "xy"},
    **{f"{axis}tick.labelsize": 9 for axis in "xy"},
    **{"legend.frameon": False, "legend.fontsize": 8, "axes.formatter.useoffset": False},
}
_GREY = "C6"
MAX_COMPONENTS = 6
_CHARACTERS_PER_INCH = 14  # of the caption
MAX_CURVES = 6
FEW_POINTS = 5
"""With fewer points, a line would suggest a measured curve."""


@contextmanager
def png_panels(
    path: Path,
    count: int,
    size: tuple[float, float],
    *,
    across: int = 3,
    caption: str = "",
    **options: Any,
) -> Iterator[Any]:
    """Yield `count` empty plots; write them to `path` as a PNG at the end.

    The seven colours `C0` to `C6` suit colour-blind readers. The file has no version or date, so
    equal numbers give equal bytes.

    Args:
        path: the file, which is replaced atomically.
        count: how many plots (matplotlib `Axes`) to yield.
        size: width and height of a plot in inches.
        across: maximum of plots side by side.
        caption: text below all plots.
        options: of `matplotlib.figure.Figure.subplots`.
    """
    # Not pyplot, whose global state and backend belong to the caller.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = max(1, math.ceil(count / across))
    columns = max(1, math.ceil(count / rows))  # four are 2 by 2, not 3 and 1
    with rc_context(_STYLE):
        figsize = (size[0] * columns, size[1] * rows)
        figure = Figure(figsize=figsize, dpi=160, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, **options).flatten()
        for axes in panels[count:]:
            axes.set_axis_off()
        wrapped = textwrap.fill(caption, round(_CHARACTERS_PER_INCH * figsize[0]))
        figure.supxlabel(wrapped, fontsize=8)
        yield panels[:count]
        picture = io.BytesIO()
        figure.savefig(picture, format="png", metadata={"Software": None})
    atomic_write_bytes(path, picture.getvalue())


def step_curve(
    axes: Any, points: Sequence[tuple[int, float]], line: str = "-", **options: Any
) -> None:
    """Draw values over training steps: a line, or only markers for fewer than `FEW_POINTS`.

    `line` is matplotlib's line format. With `yerr` in `options` (of matplotlib's `plot`) points
    have error bars.
    """
    style = "o" if len(points) < FEW_POINTS else line
    if "yerr" in options:
        axes.errorbar(*zip(*points, strict=True), fmt=style, **options)
    else:
        axes.plot(*zip(*points, strict=True), style, **options)
    axes.xaxis.get_major_locator().set_params(integer=True)


def reward_curve(record: RunRecord, path: Path) -> bool:
    """Draw reward over optimizer steps, and held-out reward before and after, as a PNG.

    Left: the mean total with a band of one standard deviation over completions, limited to the
    lowest and highest logged total, and the mean of each weighted component. Right: held-out means
    with 95% intervals. A half that was not measured is omitted. Return False without a file if
    neither was measured.
    """
    total = series(record.training.history, f"rewards/{TOTAL}/mean")
    evaluation = record.evaluation or EvaluationSection()
    held_out = {
        stage: estimate
        for stage in ("before", "after")
        if (estimate := evaluation.estimate(stage, TOTAL)).mean is not None
    }
    trained = len(total) >= 2
    if not (trained or held_out):
        return False
    count = trained + bool(held_out)
    # Equal scales: a held-out gain must not appear larger than the same gain in training.
    widths = (2.6, 1) if count == 2 else None
    with png_panels(path, count, (9 / count, 3.8), sharey=True, width_ratios=widths) as panels:
        panels[0].set_ylabel("reward per completion")
        if trained:
            _draw_training(panels[0], record, total)
        if held_out:
            _draw_held_out(panels[-1], evaluation.rows, held_out)
    return True


def _draw_training(axes: Any, record: RunRecord, total: list[tuple[int, float]]) -> None:
    history = record.training.history
    spread = dict(series(history, f"rewards/{TOTAL}/std"))
    parts = [part for part in record.reward.rewards if part.weight and part.label != TOTAL]
    for index, part in enumerate(parts[:MAX_COMPONENTS], start=1):
        points = series(history, f"rewards/{part.label}/mean")
        if points and len(parts) > 1:
            label = f"{part.label} (× {part.weight:g})"
            step_curve(axes, points, color=f"C{index}", lw=1.3, label=label)
    lowest, highest = (
        end([value for _, value in series(history, f"rewards/{TOTAL}/{end.__name__}")] or [limit])
        for end, limit in ((min, -math.inf), (max, math.inf))
    )
    steps, means = map(np.array, zip(*total, strict=True))
    std = np.array([spread.get(step, 0.0) for step, _ in total])
    low, high = np.maximum(means - std, lowest), np.minimum(means + std, highest)
    look: dict[str, Any] = {"color": "C0", "lw": 2.2}
    if len(total) < FEW_POINTS:
        # Rounding may put a mean slightly beyond the extreme.
        bars = np.maximum([means - low, high - means], 0.0)
        step_curve(axes, total, yerr=bars, label="total (bars: ± 1 std)", **look)
    else:
        axes.fill_between(steps, low, high, color="C0", alpha=0.15, lw=0)
        step_curve(axes, total, label="total (band: ± 1 std)", **look)
        axes.set_xlim(steps[0], steps[-1])
    if points := series(history, f"eval_{HELD_OUT}{TOTAL}"):
        label = "total on validation rows"
        step_curve(axes, points, "o--", color=_GREY, lw=1.3, label=label)
    axes.set_xlabel("training step")
    axes.set_title("Training")
    axes.legend(loc="best")


def _draw_held_out(axes: Any, rows: int | None, held_out: Mapping[str, Estimate]) -> None:
    for x, (stage, estimate) in enumerate(held_out.items()):
        mean, low, high = estimate.mean, estimate.low, estimate.high
        assert mean is not None, "those without are left out"
        bar = None if low is None or high is None else [[mean - low], [high - mean]]
        color = "C0" if stage == "after" else _GREY
        axes.errorbar([x], [mean], yerr=bar, fmt="o", color=color, capsize=6, lw=2, ms=7)
        axes.annotate(
            f"{mean:.3f}", (x, mean), xytext=(11, 0), textcoords="offset points", va="center",
            color=color, fontsize=10,
        )  # fmt: skip
    axes.set_xticks(range(len(held_out)), list(held_out))
    axes.set_xlim(-0.5, len(held_out) - 0.25)
    axes.margins(y=0.15)
    axes.set_title("Held out" if rows is None else f"Held out, {rows} rows")
    axes.set_xlabel("training (bars: 95%)")


def training_curves(record: RunRecord, path: Path) -> bool:
    """Draw the trainer's own metrics (loss, KL, entropy, ...) over the steps as a PNG.

    There is a panel for each of the first `MAX_CURVES` rows of the card's table that were logged
    more than once and are not constant, also with their values on validation rows. The metric that
    chose the best step comes first, with a line at that step; the others follow, most often logged
    first. Return False without a file if there is no panel.
    """
    history = record.training.history
    names = [row["name"] for row in trainer_history(history, record.reward)["rows"]]
    curves = {name: series(history, name) for name in names}
    varying = [name for name, points in curves.items() if len({y for _, y in points}) > 1]
    # A validation metric is drawn in the panel of the same training metric.
    panel_names = list(dict.fromkeys(name.removeprefix("eval_") for name in varying))
    validation = record.training.validation or ValidationSection()
    points_of = {name: len(curves.get(name, ())) for name in panel_names}
    panel_names.sort(key=lambda name: (name != validation.metric, -points_of[name]))
    panel_names = panel_names[:MAX_CURVES]
    if not panel_names:
        return False
    with png_panels(path, len(panel_names), (3.4, 2.4)) as panels:
        for axes, name in zip(panels, panel_names, strict=True):
            if points := curves.get(name):
                step_curve(axes, points, color="C0", lw=1.6, label="training")
            if points := curves.get(f"eval_{name}"):
                step_curve(axes, points, "o-", color="C1", lw=1.6, label="validation")
                axes.legend(loc="best")
            if name == validation.metric and validation.best_step is not None:
                axes.axvline(validation.best_step, color=_GREY, ls="--", lw=1)
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("training step", fontsize=9)
    return True
