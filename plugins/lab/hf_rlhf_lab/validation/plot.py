"""Plot a validation: agreement, calibration, length and hacks."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_rlhf.cards import png_panels

if TYPE_CHECKING:
    from hf_rlhf.storage import Estimate
    from hf_rlhf.storage import ReportCheck as Check

_CAPTION = (
    "Green passes, amber warns, orange fails, grey shows nothing. Lines are 95% intervals; the "
    "dashed line is chance, or zero."
)
COLOURS = {"pass": "C2", "warn": "C4", "fail": "C1", "not measurable": "C6"}
LINE = "#999999"
MOST_HACKS = 14
"""Number of best-paid hacks."""


def draw(headline: str, found: Sequence["Check"], path: Path) -> None:
    """Write the plot as a PNG: green passes, amber warns, orange fails; grey is not measurable."""
    checks = {check.name: check for check in found}
    panels = {
        "agreement": ("Does it prefer the better response?", _agreement),
        "calibration": ("Are its margins log odds?", _calibration),
        "length": ("Does it pay for empty words?", _length),
        "hacks": ("Does it pay more for known hacks?", _hacks),
    }
    with png_panels(path, len(panels), (5.2, 3.6), across=2, caption=_CAPTION) as plots:
        plots[0].figure.suptitle(_wrapped(headline, 90), fontweight="bold", fontsize=13)
        for axes, (name, (question, show)) in zip(plots, panels.items(), strict=True):
            check = checks.get(name)
            if check is None or check.verdict == "not measurable":
                axes.set_axis_off()
                axes.set_title(f"{question}  Not measurable", color="#666666")
                why = check.summary if check else "not asked for"
                axes.text(0, 0.9, _wrapped(why), va="top", fontsize=9)
            else:
                show(axes, check, checks)
                axes.set_title(f"{question}  {check.verdict}", color=COLOURS[check.verdict])


def _agreement(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    rows = {"gold": (check.measures["accuracy"], COLOURS[check.verdict])}
    for name, other in checks.items():
        if name.startswith("other data"):
            value = other.measures.get("accuracy")
            rows[name.partition(": ")[2]] = (value, COLOURS[other.verdict])
    _intervals(axes, rows)
    axes.axvline(0.5, color=LINE, lw=1, ls="--")
    axes.set(xlim=(0, 1), xlabel="share of pairs in the gold data's order")


def _calibration(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    bins: Any = check.details["bins"]
    low, mean, high = (
        np.array([each["observed"][name] for each in bins]) for name in ("low", "mean", "high")
    )
    axes.plot([0.5, 1], [0.5, 1], color=LINE, lw=1, ls="--")
    axes.errorbar(
        [each["implied"] for each in bins], mean, yerr=np.maximum(0, [mean - low, high - mean]),
        fmt="o", color=COLOURS[check.verdict], capsize=3, ms=5,
    )  # fmt: skip
    label = f"probability that the margin implies (ECE {check.details['ece']:.3f})"
    axes.set(xlabel=label, ylabel="share that is right", xlim=(0.48, 1.02), ylim=(None, 1.05))


def _length(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    from hf_rlhf_lab.validation.length import ADDITIONS, LIMIT

    values = {name: check.measures.get(name) for name in ADDITIONS}
    rows = {
        name.replace("_", " "): (value, COLOURS["fail" if value.low > LIMIT else "pass"])
        for name, value in values.items()
        if value is not None and value.low is not None
    }
    axes.axvspan(-LIMIT, LIMIT, color="#e6e6e6")
    axes.axvline(0, color=LINE, lw=1, ls="--")
    _intervals(axes, rows)
    axes.set(xlabel="change of the score by added words, in standard deviations")


def _hacks(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    details: Any = check.details
    tried = [row for row in details["hacks"] if row["cases"]]
    rows = sorted(tried, key=lambda row: (not row["found"], -row["share"]))[:MOST_HACKS]
    for at, row in enumerate(rows):
        axes.barh(at, row["share"], color=COLOURS["fail" if row["found"] else "pass"], height=0.7)
    axes.axvline(0.5, color=LINE, lw=1, ls="--")
    _name_rows(axes, [row["hack"] for row in rows])
    counts = f"{details['found']} of {len(tried)} found"
    axes.set(xlim=(0, 1), xlabel=f"earns more than the honest response ({counts})")


def _intervals(axes: Any, rows: Mapping[str, tuple["Estimate | None", str]]) -> None:
    """Draw each estimate with its interval as a row of the plot."""
    known = {name: (value, colour) for name, (value, colour) in rows.items() if value}
    for at, (value, colour) in enumerate(known.values()):
        axes.plot([value.low, value.high], [at, at], color=colour, lw=2)
        axes.plot(value.mean, at, "o", color=colour, ms=6)
    _name_rows(axes, list(known))


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """Name the rows of a plot, from the top."""
    axes.set_yticks(range(len(names)), [name.replace("$", r"\$") for name in names], fontsize=8)
    axes.set(ylim=(len(names) - 0.5, -0.6))


def _wrapped(text: str, width: int = 48) -> str:
    return textwrap.fill(text, width).replace("$", r"\$")  # otherwise parsed as mathematics
