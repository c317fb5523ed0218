"""Plot a validation: agreement, calibration, length and hacks."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_rlhf.cards import png_panels

if TYPE_CHECKING:
    from hf_rlhf.storage import ReportCheck as Check

_QUESTIONS = {
    "agreement": "Does it prefer the better response?",
    "calibration": "Are its margins log odds?",
    "length": "Does it pay for empty words?",
    "hacks": "Does it pay more for known hacks?",
    "best of N": "Does the choice among N get better?",
}
_CAPTION = (
    "Green passes, amber warns, orange fails, grey shows nothing. Lines are 95% intervals; the "
    "dashed line is chance, or zero."
)
GOOD, WARNS, BAD, NEUTRAL = "C2", "C4", "C1", "C6"
LINE = "#999999"
_SHARE = "share of pairs in the gold data's order"
MOST_HACKS = 14
"""Number of best-paid hacks."""


def draw(headline: str, found: Sequence["Check"], path: Path) -> None:
    """Write the plot as a PNG: green passes, amber warns, orange fails; grey is not measurable."""
    checks = {check.name: check for check in found}
    panels = {
        "agreement": _agreement,
        "calibration": _calibration,
        "length": _length,
        "hacks": _hacks,
        **{name: _slices for name in checks if name.startswith("slices: ")},
        **{name: _best_of_n for name in checks if name == "best of N"},
    }
    with png_panels(path, len(panels), (5.2, 3.6), across=2, caption=_CAPTION) as plots:
        plots[0].figure.suptitle(_wrapped(headline, 90), fontweight="bold", fontsize=13)
        for axes, (name, show) in zip(plots, panels.items(), strict=True):
            check, question = checks.get(name), _QUESTIONS.get(name, name.capitalize())
            # A curve is drawn even if its rise is not significant.
            if check is None or (
                check.verdict == "not measurable" and "curve" not in check.details
            ):
                why = check.summary if check else "not asked for"
                axes.set_axis_off()
                axes.set_title(f"{question}  Not measurable", color="#666666")
                axes.text(0, 0.9, _wrapped(why), va="top", fontsize=9)
            else:
                show(axes, check, checks)
                answer = {"warn": "Warning", "fail": "FAIL"}.get(
                    check.verdict, check.verdict.capitalize()
                )
                axes.set_title(f"{question}  {answer}", color=_colour(check))


def _colour(check: "Check") -> str:
    return {"pass": GOOD, "warn": WARNS, "fail": BAD}.get(check.verdict, NEUTRAL)


def _agreement(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    sources = {"gold": (check.measures["accuracy"], _colour(check))}
    for name, other in checks.items():
        if name.startswith("other data"):
            sources[name.partition(": ")[2]] = (other.measures.get("accuracy"), _colour(other))
    for name in ("one_label", "reward_on_other_labels"):
        sources[name.replace("_", " ")] = (check.measures.get(name), NEUTRAL)
    measured = {name: (value, colour) for name, (value, colour) in sources.items() if value}
    for at, (value, colour) in enumerate(measured.values()):
        draw_interval(axes, at, value.model_dump(), colour)
    axes.axvline(0.5, color=LINE, lw=1, ls="--")
    axes.text(0.5, -0.45, " chance", fontsize=8, color="#666666")
    label_rows(axes, list(measured), xlim=(0, 1), xlabel=_SHARE)


def _calibration(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    bins = check.details["bins"]
    axes.plot([0.5, 1], [0.5, 1], color=LINE, lw=1, ls="--")
    draw_bins(axes, [each["implied"] for each in bins], bins, _colour(check))
    axes.set(
        xlabel=f"probability that the margin implies (ECE {check.details['ece']:.3f})",
        ylabel="share that is right",
        xlim=(0.48, 1.02),
        ylim=(min(0.3, *(each["observed"]["mean"] for each in bins)) - 0.05, 1.05),
    )


def _length(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    from hf_rlhf_lab.validation.length import ADDITIONS, LIMIT

    names = [name for name in ADDITIONS if check.measures.get(name)]
    axes.axvspan(-LIMIT, LIMIT, color="#e6e6e6")
    axes.axvline(0, color=LINE, lw=1, ls="--")
    for at, name in enumerate(names):
        value = check.measures[name].model_dump()  # type: ignore[union-attr]
        draw_interval(axes, at, value, BAD if value["low"] > LIMIT else GOOD)
    label = "change of the score by added words, in standard deviations"
    label_rows(axes, [name.replace("_", " ") for name in names], xlabel=label)


def _hacks(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    tried = [row for row in check.details["hacks"] if row["cases"]]
    rows = sorted(tried, key=lambda row: (not row["found"], -row["share"]))[:MOST_HACKS]
    for at, row in enumerate(rows):
        axes.barh(at, row["share"], color=BAD if row["found"] else GOOD, height=0.7)
    axes.axvline(0.5, color=LINE, lw=1, ls="--")
    counts = f"{check.details['found']} of {len(tried)} found"
    label = f"earns more than the honest response ({counts})"
    label_rows(axes, [row["hack"] for row in rows], xlim=(0, 1), xlabel=label)
    axes.tick_params("y", labelsize=8)


def _slices(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    rows: Any = check.details["slices"]
    for at, row in enumerate(rows[:MOST_HACKS]):
        shown = GOOD if row["accuracy"]["low"] > 0.5 else NEUTRAL
        draw_interval(axes, at, row["accuracy"], BAD if row["worse_than_chance"] else shown)
    axes.axvline(0.5, color=LINE, lw=1, ls="--")
    label_rows(axes, [row["slice"] for row in rows[:MOST_HACKS]], xlim=(0, 1), xlabel=_SHARE)


def _best_of_n(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    curve: Any = check.details["curve"]
    sizes = [row["n"] for row in curve]
    for order, colour in (("gold", "C0"), ("reward", _colour(check))):
        draw_bins(axes, sizes, [{"observed": row[order]} for row in curve], colour)
        means = [row[order]["mean"] for row in curve]
        axes.plot(sizes, means, color=colour, label=f"best by the {order}")
    axes.axhline(curve[0]["reward"]["mean"], color=LINE, lw=1, ls="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, sizes)
    axes.set(xlabel="N", ylabel="gold grade of the best of N")
    axes.legend(frameon=False, fontsize=8)


def draw_interval(axes: Any, at: float, value: Mapping[str, Any], colour: str) -> None:
    """Draw the mean of an estimate, as JSON, and its interval, along a row of the plot."""
    axes.plot([value["low"], value["high"]], [at, at], color=colour, lw=2)
    axes.plot(value["mean"], at, "o", color=colour, ms=6)


def draw_bins(axes: Any, x: Any, bins: Sequence[Mapping[str, Any]], colour: str) -> None:
    """Draw estimates at `x` with their intervals, such as the share of right answers per bin."""
    low, mean, high = (
        np.array([each["observed"][name] for each in bins]) for name in ("low", "mean", "high")
    )
    ends = np.maximum(0, [mean - low, high - mean])
    axes.errorbar(x, mean, yerr=ends, fmt="o", color=colour, capsize=3, ms=5)


def label_rows(axes: Any, names: Sequence[str], **settings: Any) -> None:
    """Name the rows of a plot, from the top."""
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names])
    axes.set(ylim=(len(names) - 0.5, -0.6), **settings)


def _wrapped(text: str, width: int = 48) -> str:
    return "\n".join(textwrap.wrap(text, width)).replace(
        "$", r"\$"
    )  # otherwise parsed as mathematics
