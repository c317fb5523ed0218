"""The training monitor on the card: a few lines, and two panels."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hf_rlhf.cards.plots import png_panels, step_curve
from hf_rlhf.formatting import code, counted, plain
from hf_rlhf.storage.monitor_schema import MonitorSection
from hf_rlhf.storage.record import RunRecord

MONITOR_PICTURE = "monitor.png"
_Z = 1.96


def monitor_lines(record: RunRecord) -> list[str]:
    """Return the monitor's results as Markdown lines; none without a monitor."""
    monitor = record.training.monitor
    return [] if monitor is None else list(_lines(monitor))


def _lines(monitor: MonitorSection) -> Iterator[str]:
    settings = monitor.settings
    gold = settings.get("gold")
    beside = f", with the gold reward {code(gold)}" if gold else ", without a gold reward"
    yield (
        f"{counted(len(monitor.measurements), 'measurement')} of {settings.get('every')} steps "
        f"each{beside}. It warns where completions are {settings.get('length_z'):g} standard "
        f"deviations longer than in the first {settings.get('warmup')} measurements, which is weak "
        "evidence, and where gold falls while the trained reward rises."
    )
    for warning in monitor.warnings:
        stopped = " The run was stopped there." if warning.get("stopped") else ""
        yield f"- Step {warning.get('step')}: {plain(warning.get('text'))}.{stopped}"
    if not monitor.warnings:
        yield "No signal came on."
    for text in monitor.not_measured:
        yield f"- Not measured: {plain(text)}."
    posts = monitor.webhook or {}
    if posts.get("failed"):
        yield f"{counted(posts['failed'], 'message')} to the webhook failed."


def monitor_panels(record: RunRecord, path: Path) -> bool:
    """Draw the measurements as a PNG: length, and trained against gold reward.

    A dashed line is a threshold, a red mark a measurement with the signal active. Return False
    without a file for fewer than two measurements.
    """
    monitor = record.training.monitor
    if monitor is None or len(monitor.measurements) < 2:
        return False
    caption = "red: the signal is on; dashed: its threshold; grey: the warm-up; bars: 95%"
    with png_panels(path, 2, (3.7, 2.9), caption=caption) as panels:
        _length(panels[0], monitor)
        _rewards(panels[1], monitor)
        for axes in panels:
            axes.set_xlabel("training step")
            warmup = monitor.measurements[: int(monitor.settings.get("warmup") or 0)]
            axes.axvspan(0, warmup[-1]["step"], color="#eeeeee", lw=0, zorder=0)
    return True


def _length(axes: Any, monitor: MonitorSection) -> None:
    axes.set_title("Length in characters")
    _series(axes, monitor, "length", "C0", "length")
    start = [each["length"]["mean"] for each in _warmup(monitor) if each["length"]]
    if len(start) > 1 and (spread := stdev(start)):
        limit = fmean(start) + float(monitor.settings["length_z"]) * spread
        axes.axhline(limit, color="#555555", ls="--", lw=1)


def _rewards(axes: Any, monitor: MonitorSection) -> None:
    axes.set_title("Rewards")
    _series(axes, monitor, "trained", "C0", "")
    if any(each["gold"] for each in monitor.measurements):
        _series(axes, monitor, "gold", "C4", "gold")
    axes.legend(loc="best")


def _series(axes: Any, monitor: MonitorSection, key: str, colour: str, signal: str) -> None:
    """Draw the means of the measurements with intervals, and mark where `signal` is active."""
    known = [each for each in monitor.measurements if each[key]]
    points = [(each["step"], each[key]["mean"]) for each in known]
    errors = [_Z * (each[key]["error"] or 0.0) for each in known]
    if points:
        step_curve(axes, points, "o-", yerr=errors, color=colour, lw=1.4, ms=3, label=key)
    _mark(axes, [(each["step"], each[key]["mean"]) for each in known if signal in each["signals"]])


def _mark(axes: Any, points: list[tuple[int, float]]) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), "o", color="#cc0000", ms=6, zorder=5)


def _warmup(monitor: MonitorSection) -> list[Mapping[str, Any]]:
    return list(monitor.measurements[: int(monitor.settings["warmup"])])
