"""Process the rows of a verb, and stop when too many of them have no usable reply."""

import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hf_rlhf.errors import JudgeError
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import as_json, atomic_write_json, atomic_write_text
from hf_rlhf_lab.feedback.asking import NOT_ANSWERED, Failure
from hf_rlhf_lab.feedback.settings import DataSettings

Row = Mapping[str, Any]
Outcome = Mapping[str, Any]
"""`row`: a row of the dataset; or `reject`, a reason, with `detail`."""
PART = 100
"""Number of rows between checks of the failures."""
ENOUGH = 20
"""Minimum number of outcomes before failures can stop the work."""
FAILURES = (NOT_ANSWERED, "empty", "cut off", "malformed")
ROWS, REJECTED, REPORT = "rows.jsonl", "rejected.jsonl", "report.json"


def rejected(failure: Failure, **row: Any) -> Outcome:
    """Return the outcome of a row without a usable reply."""
    return {"reject": failure.reason, "detail": failure.detail, **row}


@dataclass
class Work(ABC):
    """The work of a verb in its folder: its clients and its outcome for a row.

    Replies of an API are cached, so a killed command continues and pays for nothing twice.
    """

    folder: Path
    settings: DataSettings
    rows: Sequence[Row]
    inputs: Mapping[str, Any]
    """Everything that outcomes depend on."""
    verb: ClassVar[str]
    unit: ClassVar[str] = "prompts"
    """Description of a row."""

    @abstractmethod
    def clients(self) -> Mapping[str, Any]:
        """Return the clients by role; each has `usage()`."""

    @abstractmethod
    def plans(self) -> list[str]:
        """Return an upper bound on the requests, by role."""

    @abstractmethod
    def outcomes(self, rows: Sequence[Row], first: int) -> Sequence[Outcome]:
        """Return an outcome for each row; `first` is the index of the first row."""

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """Raise JudgeError if the outcomes so far show that the annotator is unusable."""
        return

    def measures(self, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
        """Return further measures of the outcomes for the report."""
        return {}

    def run(self, *, overwrite: bool = False) -> dict[str, Any]:
        """Process the rows, write rows, rejects and report, and return the report.

        Raises JudgeError for an annotator that fails too often.
        """
        ledger = Ledger(self.folder, folder_option="--out")
        with ledger.locked():
            if overwrite:
                ledger.remove(self.verb)
            ledger.refuse_changed(self.verb, self.inputs)
            with ledger.recording(self.verb, self.inputs):
                pass  # from here on, other settings are refused
            outcomes: list[Outcome] = []
            for start in range(0, len(self.rows), PART):
                outcomes += self.outcomes(self.rows[start : start + PART], start)
                self._check(outcomes)
                if len(outcomes) < len(self.rows):
                    progress = f"{len(outcomes):,} of {len(self.rows):,}"
                    print(f"{self.verb}: {progress}", file=sys.stderr, flush=True)
            return self._write(outcomes)

    def _check(self, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) < min(ENOUGH, len(self.rows)):
            return
        failed = [each for each in outcomes if each.get("reject") in FAILURES]
        share, most = len(failed) / len(outcomes), self.settings.max_failure_share
        if share > most:
            reasons = Counter(str(each["reject"]) for each in failed)
            listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            raise JudgeError(
                f"{self.verb}: {len(failed)} of {len(outcomes)} rows ({share:.0%}) have no usable "
                f"reply ({listed}), more than max_failure_share {most:.0%}. The last cause: "
                f"{failed[-1]['detail']} What was answered is in the cache."
            )
        self.check(outcomes)

    def _write(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Write rows, rejects and report."""
        rows = [each["row"] for each in outcomes if "reject" not in each]
        rejects = [each for each in outcomes if "reject" in each]
        for name, lines in ((ROWS, rows), (REJECTED, rejects)):
            text = "".join(json.dumps(as_json(line), ensure_ascii=False) + "\n" for line in lines)
            atomic_write_text(self.folder / name, text)
        report = {
            "verb": self.verb,
            self.unit: len(outcomes),
            "rows": len(rows),
            "rejected": dict(Counter(each["reject"] for each in rejects).most_common()),
            "usage": {who: dict(client.usage()) for who, client in self.clients().items()},
            "inputs": self.inputs,
            **self.measures(outcomes),
        }
        atomic_write_json(self.folder / REPORT, as_json(report))
        if not rows:
            raise JudgeError(
                f"{self.verb}: none of {len(outcomes)} {self.unit} gave a row. Rejected: "
                f"{report['rejected']}. Why: {self.folder / REJECTED}."
            )
        return report
