"""Requirements of a run on the report on its reward."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hf_rlhf.storage import Estimate, Requirement
from hf_rlhf_lab.validation.report import Report


@dataclass(frozen=True)
class Measure:
    """A number of a report that a run may constrain."""

    check: str
    """The name of its check, or a prefix of several checks' names."""
    source: str
    """The name of a measure or a detail of the check."""
    at_least: bool
    """False: an upper bound on the absolute value."""
    text: str


MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("agreement", "accuracy", True, "share of pairs in the order of the gold"),
    "spearman": Measure("agreement", "spearman", True, "rank correlation with the gold grade"),
    "other_accuracy": Measure("other data: ", "accuracy", True, "the lowest of `--other-data`"),
    "other_loss": Measure("other data: ", "loss", False, "largest loss on an `--other-data`"),
    "worst_slice": Measure("slices: ", "worst_slice", True, "lowest accuracy of a slice (`--by`)"),
    "ece": Measure("calibration", "ece", False, "expected calibration error"),
    "length_bias": Measure("length", "length_bias", False, "largest change by empty words, in SDs"),
    "length_correlation": Measure("length", "length_correlation", False, "at equal gold grade"),
    "repeats": Measure("repeats", "change", False, "mean change when scored again, in SDs"),
    "hacks": Measure("hacks", "found", False, "number of known hacks that are paid more"),
    "abstentions": Measure("abstentions", "share", False, "share of responses without a score"),
}  # fmt: skip
"""By key in a run file's `reward_validation.require`."""

_NOT_OF_GOLD = ("length", "repeats", "hacks", "abstentions")
"""Checks that stay valid if the reward was trained on the gold data."""
DEFAULT_ATTACKS = "text_attacks"
_OPTIONS = {
    "other data: ": ": validate with `--other-data FILE`",
    "slices: ": ": validate with `--by COLUMN`",
}


def requirements(report: Report, require: Mapping[str, float]) -> Iterator[Requirement]:
    """Yield for each required measure whether a report meets it; the keys are in `MEASURES`.

    The unfavourable bound of the interval decides. A failed or unmeasurable check meets nothing: a
    requirement can be stricter than its check, never looser.
    """
    for key, required in require.items():
        measure = MEASURES[key]
        measured, reason = _measured(report, measure)
        reached = False
        if measured is not None:
            value = _bound_of(measured, measure.at_least)
            reached = value >= required if measure.at_least else value <= required
        yield Requirement(
            label=str(report.reward.get("label")), measure=key, required=required,
            at_least=measure.at_least, measured=measured, met=reached and reason is None,
            reason=reason if reached or measured is None else None,
        )  # fmt: skip


def _measured(report: Report, measure: Measure) -> tuple[Estimate | None, str | None]:
    """Return the value, the worst of several checks, and why it cannot meet a requirement."""
    checks = [check for check in report.checks if check.name.startswith(measure.check)]
    if not checks:
        option = _OPTIONS.get(measure.check, "")
        return None, f"the report has no check {measure.check.strip(': ')!r}{option}"
    values = []
    for check in checks:
        value = check.measures.get(measure.source)
        if value is None and isinstance(number := check.details.get(measure.source), int | float):
            value = Estimate(mean=number)
        if check.verdict == "not measurable" or value is None or value.mean is None:
            return None, check.summary.rstrip(".") or "not measurable"
        values.append((_bound_of(value, measure.at_least) * (1 if measure.at_least else -1), value))
    worst = min(values, key=lambda pair: pair[0])[1]
    seen = [check for check in report.failed if check.name == "overlap"]
    suspect = seen if measure.check not in _NOT_OF_GOLD else []
    if failed := [each for each in (*checks, *suspect) if each.verdict == "fail"]:
        return worst, f"the check {failed[0].name!r} fails: {failed[0].summary.rstrip('.')}"
    if measure.check == "hacks" and DEFAULT_ATTACKS not in report.attacks:
        tried = ", ".join(report.attacks) or "none"
        return worst, f"the attacks that were tried ({tried}) lack {DEFAULT_ATTACKS}"
    return worst, None


def _bound_of(value: Estimate, at_least: bool) -> float:
    """Return the unfavourable bound, or the mean without an interval.

    For an upper limit it is the larger absolute value.
    """
    bounds = [each for each in (value.low, value.high, value.mean) if each is not None]
    return min(bounds) if at_least else max(map(abs, bounds))
