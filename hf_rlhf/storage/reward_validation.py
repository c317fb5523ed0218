"""What a record holds of the validation of its run's rewards."""

from typing import Literal

from hf_rlhf.storage.record_schema import Estimate
from hf_rlhf.storage.section import Json, Number, Section


class ReportCheck(Section):
    """One check of a reward."""

    name: str = ""
    verdict: Literal["pass", "warn", "fail", "not measurable"] = "not measurable"
    summary: str = ""
    """One sentence with the numbers that decided."""
    measures: dict[str, Estimate | None] = {}
    """By name; null where it is not defined."""
    details: dict[str, Json] = {}
    """What plots and other programs need; the record of a run leaves it out."""


class ValidatedReward(Section):
    """A report on a reward of the run, or on their total."""

    label: str | None = None
    headline: str | None = None
    digest: str | None = None
    """Of the reward: components, arguments and the files that they name."""
    data: dict[str, Json] = {}
    """`name`, `responses`, `pairs` and `digest` of the gold data."""
    checks: list[ReportCheck] = []
    created: str | None = None
    command: str | None = None
    folder: str | None = None
    """Of the report, in the run folder."""
    picture: str | None = None
    """In that folder, if there is one."""


class Requirement(Section):
    """What the run file requires of a measure of a report."""

    label: str = ""
    measure: str = ""
    required: Number = 0
    at_least: bool = True
    """False: at most."""
    measured: Estimate | None = None
    met: bool = False
    reason: str | None = None
    """Why it was not measured, or does not meet it though its value would."""

    @property
    def text(self) -> str:
        """Return what was measured and what is required."""
        value = self.measured
        required = f"required: at {'least' if self.at_least else 'most'} {self.required:g}"
        if value is None or value.mean is None:
            return f"{self.measure} of {self.label} was not measured: {self.reason} ({required})"
        if not self.at_least and value.mean < 0:
            required += " in either direction"
        text = f"{self.measure} of {self.label} is {value.mean:.3g}"
        if value.low is not None and value.high is not None:
            text += f" [{value.low:.3g}, {value.high:.3g}]"
            decides = "the lower bound" if self.at_least else "the bound farther from 0"
            required += f" by {decides}"
        return f"{text} ({required})" + (f", but {self.reason}" if self.reason else "")


class RewardValidation(Section):
    """The reports that the run file names, and whether they meet what it requires."""

    reports: list[ValidatedReward] = []
    requirements: list[Requirement] = []
    enforced: bool = True
    """Whether an unmet requirement would have stopped the run."""
