"""The training monitor on the card."""

from collections.abc import Iterator

from hf_rlhf.formatting import code, counted, plain
from hf_rlhf.storage.monitor_schema import MonitorSection
from hf_rlhf.storage.record import RunRecord


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
