"""The report of a reward's validation, and what a run may require of it.

`hf-rlhf rewards validate` (package hf-rlhf-lab) writes reports; a run file names them in its
section `reward_validation`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from hf_rlhf.errors import DataError
from hf_rlhf.steps.digests import digest
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.record_schema import Environment, Estimate
from hf_rlhf.storage.reward_validation import ReportCheck, Requirement, bound_of
from hf_rlhf.storage.section import Json, Section

SCHEMA = 2
REPORT_NAME = "validation.json"


class ValidationReport(Section):
    """What was measured of one reward on one set of gold data."""

    schema_version: int = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    headline: str = ""
    """The result in one sentence."""
    reward: dict[str, Json] = {}
    """By `hf_rlhf.rewards.reward_identity`: `label`, `digest` and what the digest is of."""
    data: dict[str, Json] = {}
    """Name, responses, pairs and digest of the gold data, and whether prompts are messages."""
    attacks: list[str] = []
    """Those whose hacks were tried."""
    checks: list[ReportCheck] = []
    cost: dict[str, Json] = {}
    """Responses scored, seconds, and what judges used."""
    created: str | None = None
    command: str | None = None
    environment: Environment = Environment()

    @property
    def failed(self) -> list[ReportCheck]:
        """The checks that fail."""
        return [check for check in self.checks if check.verdict == "fail"]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a report, or the one in a folder. Raises DataError for anything else.

        Its digest shows edits by accident, not on purpose: anybody can compute it anew.
        """
        file = Path(path) / REPORT_NAME if Path(path).is_dir() else Path(path)
        cure = (
            "Name what `hf-rlhf rewards validate` wrote, unchanged: validation.json, or its folder."
        )
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
            if content.get("schema") != SCHEMA:
                problem = f"has the schema {content.get('schema')!r}; this hf_rlhf reads {SCHEMA}"
            elif content.pop("digest", None) != digest(content):
                problem = "was edited since it was written"
            else:
                return cls.model_validate(content, strict=True)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"is no report of a validation: {where}: {error.errors()[0]['msg']}"
        except (ValueError, AttributeError) as error:
            problem = f"is no report of a validation: {error}"
        raise DataError(f"{file} {problem}. {cure}")

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with a digest of itself."""
        return sealed(super().to_json())


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a report with its digest, in place of one that it has."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return {**rest, "digest": digest(rest)}


@dataclass(frozen=True)
class Measure:
    """A number of a report that a run may require."""

    check: str
    """The name of its check, or how those of several checks begin."""
    source: str
    """The name of a measure or of a detail of the check."""
    at_least: bool
    """False: at most, of either sign."""
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
"""By their keys in a run file's `reward_validation.require`."""


_NOT_OF_GOLD = ("length", "repeats", "hacks", "abstentions")
"""Checks whose results do not depend on whether the reward has seen the gold data."""
DEFAULT_ATTACKS = "text_attacks"
_OPTIONS = {
    "other data: ": ": validate with `--other-data FILE`",
    "slices: ": ": validate with `--by COLUMN`",
}


def requirements(report: ValidationReport, require: Mapping[str, float]) -> Iterator[Requirement]:
    """Yield for each required measure whether a report meets it; the keys are in `MEASURES`.

    The unfavourable bound of the interval decides. A check that fails, or is not measurable, meets
    nothing: a requirement can be stricter than its check, and never looser.
    """
    for key, required in require.items():
        measure = MEASURES[key]
        measured, reason = _measured(report, measure)
        reached = False
        if measured is not None:
            value = bound_of(measured, measure.at_least)
            reached = value >= required if measure.at_least else value <= required
        yield Requirement(
            label=str(report.reward.get("label")), measure=key, required=required,
            at_least=measure.at_least, measured=measured, met=reached and reason is None,
            reason=reason if reached or measured is None else None,
        )  # fmt: skip


def _measured(report: ValidationReport, measure: Measure) -> tuple[Estimate | None, str | None]:
    """Return the value, of several checks the worst, and why it cannot meet a requirement."""
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
        values.append((bound_of(value, measure.at_least) * (1 if measure.at_least else -1), value))
    worst = min(values, key=lambda pair: pair[0])[1]
    seen = [check for check in report.failed if check.name == "overlap"]
    suspect = seen if measure.check not in _NOT_OF_GOLD else []
    if failed := [each for each in (*checks, *suspect) if each.verdict == "fail"]:
        return worst, f"the check {failed[0].name!r} fails: {failed[0].summary.rstrip('.')}"
    if measure.check == "hacks" and DEFAULT_ATTACKS not in report.attacks:
        tried = ", ".join(report.attacks) or "none"
        return worst, f"the attacks that were tried ({tried}) lack {DEFAULT_ATTACKS}"
    return worst, None
