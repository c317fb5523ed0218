"""Record section on the validation of a run's rewards."""

from typing import Literal

from hf_rlhf.storage.record_schema import Estimate
from hf_rlhf.storage.section import Json, Number, Section


class ReportCheck(Section):
    """A check of a reward."""

    name: str = ""
    verdict: Literal["pass", "warn", "fail", "not measurable"] = "not measurable"
    summary: str = ""
    """A sentence with the decisive numbers."""
    measures: dict[str, Estimate | None] = {}
    """Measures by name; null if undefined."""
    details: dict[str, Json] = {}
    """Details for plots and other programs, not in a run's record."""


class ValidatedReward(Section):
    """A report on a reward of the run, or on their total."""

    label: str | None = None
    headline: str | None = None
    digest: str | None = None
    """Digest of the reward: components, arguments and their files."""
    data: dict[str, Json] = {}
    """`name`, `responses`, `pairs` and `digest` of the gold data."""
    checks: list[ReportCheck] = []
    created: str | None = None
    command: str | None = None
    folder: str | None = None
    """Folder of the report in the run folder."""
    picture: str | None = None
    """Picture in that folder, if any."""


class Requirement(Section):
    """The run file's requirement for a measure of a report."""

    label: str = ""
    measure: str = ""
    required: Number = 0
    at_least: bool = True
    """False: at most."""
    measured: Estimate | None = None
    met: bool = False
    reason: str | None = None
    """Why it was not measured, or fails although its value would pass."""

    @property
    def text(self) -> str:
        """Return the measured and the required value."""
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
    """The reports in the run file, and whether they meet its requirements."""

    reports: list[ValidatedReward] = []
    requirements: list[Requirement] = []
    enforced: bool = True
    """Whether an unmet requirement would have stopped the run."""
