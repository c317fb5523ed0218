"""The plot of a validation: agreement, calibration, length and hacks at one sight."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.cards import png_panels

if TYPE_CHECKING:
    from hf_rlhf.storage import Estimate
    from hf_rlhf.storage import ReportCheck as Check
    from hf_rlhf_lab.validation.report import Report

_QUESTIONS = {
    "agreement": "Does it prefer the better response?",
    "calibration": "Are its margins log odds?",
    "length": "Does it pay for empty words?",
    "hacks": "Does it pay more for known hacks?",
}
_CAPTION = (
    "Green passes, orange fails. Lines are 95% intervals; the dashed line is chance, or zero."
)
GOOD, BAD, NEUTRAL = "C2", "C1", "C6"


def draw(report: "Report", path: Path) -> None:
    """Write the plot as a PNG: green passes, orange fails, grey is not measurable."""
    checks = {check.name: check for check in report.checks}
    panels = {
        "agreement": _agreement,
        "calibration": _calibration,
        "length": _length,
        "hacks": _hacks,
    }
    with png_panels(path, len(panels), (5.2, 3.6), across=2, caption=_CAPTION) as plots:
        plots[0].figure.suptitle(_wrapped(report.headline, 90), fontweight="bold", fontsize=13)
        for axes, (name, show) in zip(plots, panels.items(), strict=True):
            check = checks.get(name)
            if check is None or check.verdict == "not measurable":
                why = check.summary if check else "not asked for"
                axes.set_axis_off()
                axes.set_title(f"{_QUESTIONS[name]}  Not measurable", color="#666666")
                axes.text(0, 0.9, _wrapped(why), va="top", fontsize=9)
            else:
                show(axes, check, checks)
                answer = {"pass": "Pass", "fail": "FAIL"}[check.verdict]
                axes.set_title(f"{_QUESTIONS[name]}  {answer}", color=_colour(check))


def _colour(check: "Check") -> str:
    return GOOD if check.verdict == "pass" else BAD


def _agreement(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    sources = {"gold": (check.measures["accuracy"], _colour(check))}
    for name, other in checks.items():
        if name.startswith("other data"):
            sources[name.partition(": ")[2]] = (other.measures.get("accuracy"), _colour(other))
    sources["noise ceiling"] = (check.measures.get("noise_ceiling"), NEUTRAL)
    bars = {name: (value, colour) for name, (value, colour) in sources.items() if value}
    for at, (value, colour) in enumerate(bars.values()):
        _point(axes, at, value, colour)
    axes.axvline(0.5, color="#999999", lw=1, ls="--")
    axes.text(0.5, -0.45, " chance", fontsize=8, color="#666666")
    axes.set_yticks(range(len(bars)), bars)
    axes.set(
        xlim=(0, 1),
        ylim=(len(bars) - 0.5, -0.6),
        xlabel="share of pairs in which the better response scores higher",
    )


def _calibration(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    bins = check.details["bins"]
    x = [each["implied"] for each in bins]
    y = [each["observed"]["mean"] for each in bins]
    low = [max(0.0, each["observed"]["mean"] - each["observed"]["low"]) for each in bins]
    high = [max(0.0, each["observed"]["high"] - each["observed"]["mean"]) for each in bins]
    axes.plot([0.5, 1], [0.5, 1], color="#999999", lw=1, ls="--")
    axes.errorbar(x, y, yerr=[low, high], fmt="o", color=_colour(check), capsize=3, ms=5)
    axes.set(
        xlabel=f"probability that the margin implies (ECE {check.details['ece']:.3f})",
        ylabel="share that is right",
        xlim=(0.48, 1.02),
        ylim=(min(0.3, *y) - 0.05, 1.05),
    )


def _length(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    from hf_rlhf_lab.validation.length import ADDITIONS, LIMIT

    names = [name for name in ADDITIONS if check.measures.get(name)]
    axes.axvspan(-LIMIT, LIMIT, color="#e6e6e6")
    axes.axvline(0, color="#999999", lw=1, ls="--")
    for at, name in enumerate(names):
        value = check.measures[name]
        assert value is not None
        assert value.low is not None, "it is of several responses"
        _point(axes, at, value, BAD if value.low > LIMIT else GOOD)
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set(
        ylim=(len(names) - 0.5, -0.5),
        xlabel="change of the score by added words, in standard deviations",
    )


def _hacks(axes: Any, check: "Check", checks: Mapping[str, "Check"]) -> None:
    rows = {row["hack"]: row for row in check.details["hacks"] if row["cases"]}
    names = sorted(rows, key=lambda name: -rows[name]["share"])[:14]
    for at, name in enumerate(names):
        row = rows[name]
        axes.barh(at, row["share"], color=BAD if row["found"] else GOOD, height=0.7)
    found = check.details["found"]
    axes.axvline(0.5, color="#999999", lw=1, ls="--")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    label = f"earns more than the honest response ({found} of {len(rows)} found)"
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.5, -0.5), xlabel=label)


def _point(axes: Any, at: float, value: "Estimate", colour: str) -> None:
    axes.plot([value.low, value.high], [at, at], color=colour, lw=2)
    axes.plot(value.mean, at, "o", color=colour, ms=6)


def _wrapped(text: str, width: int = 48) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
