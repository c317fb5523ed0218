"""The report of a reward's validation, and what a run may require of it.

`hf-rlhf rewards validate` (package hf-rlhf-lab) writes reports; a run file names them in its
section `reward_validation`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from hf_rlhf.errors import DataError
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.record_schema import Environment, Estimate
from hf_rlhf.storage.reward_validation import ReportCheck, Requirement
from hf_rlhf.storage.section import Json, Section

SCHEMA = 1
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
    """Name, responses, pairs and digest of the gold data."""
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
        """Read a report, or the one in a folder. Raises DataError for anything else."""
        file = Path(path) / REPORT_NAME if Path(path).is_dir() else Path(path)
        cure = "Expected what `hf-rlhf rewards validate` writes: validation.json, or its folder."
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
            if content.get("schema") == SCHEMA:
                return cls.model_validate(content, strict=True)
            problem = f"has the schema {content.get('schema')!r}; this hf_rlhf reads {SCHEMA}"
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
        except ValidationError as error:
            where = ".".join(map(str, error.errors()[0]["loc"]))
            problem = f"is no report of a validation: {where}: {error.errors()[0]['msg']}"
        except (ValueError, AttributeError) as error:
            problem = f"is no report of a validation: {error}"
        raise DataError(f"{file} {problem}. {cure}")


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
    "ece": Measure("calibration", "ece", False, "expected calibration error"),
    "length_bias": Measure("length", "length_bias", False, "largest change by empty words, in SDs"),
    "length_correlation": Measure("length", "length_correlation", False, "at equal gold grade"),
    "repeats": Measure("repeats", "change", False, "mean change when scored again, in SDs"),
    "hacks": Measure("hacks", "found", False, "number of known hacks that are paid more"),
    "abstentions": Measure("abstentions", "share", False, "share of responses without a score"),
}  # fmt: skip
"""By their keys in a run file's `reward_validation.require`."""


def requirements(report: ValidationReport, require: Mapping[str, float]) -> Iterator[Requirement]:
    """Yield for each required measure whether a report meets it; the keys are in `MEASURES`.

    The mean decides, not a bound of its interval. What is not measurable does not meet anything.
    """
    for key, required in require.items():
        measure = MEASURES[key]
        measured, reason = _measured(report, measure)
        met = False
        if measured is not None and measured.mean is not None:
            value = measured.mean
            met = value >= required if measure.at_least else abs(value) <= required
        yield Requirement(
            label=str(report.reward.get("label")), measure=key, required=required,
            at_least=measure.at_least, measured=measured, met=met, reason=reason,
        )  # fmt: skip


def _measured(report: ValidationReport, measure: Measure) -> tuple[Estimate | None, str | None]:
    """Return the value, of several checks the worst; or None and the reason."""
    checks = [check for check in report.checks if check.name.startswith(measure.check)]
    if not checks:
        return None, f"the report has no check {measure.check.strip(': ')!r}"
    values = []
    for check in checks:
        value = check.measures.get(measure.source)
        if value is None and isinstance(number := check.details.get(measure.source), int | float):
            value = Estimate(mean=number)
        if check.verdict == "not measurable" or value is None or value.mean is None:
            return None, check.summary.rstrip(".") or "not measurable"
        values.append((value.mean if measure.at_least else -abs(value.mean), value))
    return min(values, key=lambda pair: pair[0])[1], None
