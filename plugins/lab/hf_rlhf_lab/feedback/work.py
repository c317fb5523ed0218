"""Process rows in saved parts, so that a killed command continues and pays for nothing twice."""

import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hf_rlhf.errors import JudgeError
from hf_rlhf.steps import Ledger, PartFiles
from hf_rlhf.storage import as_json, atomic_write_json, atomic_write_text
from hf_rlhf_lab.feedback.asking import NOT_ANSWERED, Failure
from hf_rlhf_lab.feedback.settings import DataSettings, Plan

Row = Mapping[str, Any]
Outcome = Mapping[str, Any]
"""`row`: a row of the dataset; or `reject`, a reason, with `detail`."""
Usage = Mapping[str, Mapping[str, float]]
"""Client role -> requests, tokens and cost."""
PART = 100
"""Number of rows between saves."""
ENOUGH = 20
"""Minimum number of outcomes before failures can stop the work."""
FAILURES = (NOT_ANSWERED, "empty", "cut off", "malformed")
ROWS, REJECTED, REPORT = "rows.jsonl", "rejected.jsonl", "report.json"


def rejected(failure: Failure, **row: Any) -> Outcome:
    """Return the outcome of a row without a usable reply."""
    return {"reject": failure.reason, "detail": failure.detail, **row}


@dataclass
class Task(ABC):
    """The task of a verb: its clients and its outcome for a row."""

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
    def plans(self) -> Sequence[Plan]:
        """Return an upper bound on the requests."""

    @abstractmethod
    def outcomes(self, rows: Sequence[Row], first: int) -> Sequence[Outcome]:
        """Return an outcome for each row; `first` is the index of the first row."""

    def check(self, outcomes: Sequence[Outcome]) -> None:
        """Raise JudgeError if the outcomes so far show that the annotator is unusable."""
        return

    def measures(self, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
        """Return further measures of the outcomes for the report."""
        return {}


@dataclass
class Work:
    """A task with its folder."""

    task: Task
    folder: Path

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the task."""
        return self.task.rows

    def plans(self) -> Sequence[Plan]:
        """Return an upper bound on the requests."""
        return self.task.plans()

    def run(self, *, overwrite: bool = False) -> dict[str, Any]:
        """Process the remaining rows, write rows, rejects and report, and return the report.

        Raises JudgeError for an annotator that fails too often; finished replies are saved.
        """
        with self._parts(overwrite) as parts:
            outcomes: list[Outcome] = []
            used: list[Usage] = []
            for number, start in enumerate(range(0, len(self.rows), PART)):
                part = self._part(parts, number, start)
                outcomes += part["outcomes"]
                used.append(part["usage"])
                self._check(outcomes)
                if len(outcomes) < len(self.rows):
                    progress = f"{len(outcomes):,} of {len(self.rows):,}"
                    print(f"{self.task.verb}: {progress}", file=sys.stderr, flush=True)
            return self._write(outcomes, _sum(*used))

    @contextmanager
    def _parts(self, overwrite: bool) -> Iterator[PartFiles]:
        ledger, verb = Ledger(self.folder, folder_option="--out"), self.task.verb
        with ledger.locked():
            if overwrite:
                ledger.remove(verb)
            ledger.refuse_changed(verb, self.task.inputs)
            with ledger.recording(verb, self.task.inputs):
                pass  # from here on, other settings are refused
            parts = PartFiles(self.folder / "parts")
            parts.reset(self.task.inputs)
            yield parts

    def _part(self, parts: PartFiles, number: int, start: int) -> dict[str, Any]:
        rows = self.rows[start : start + PART]
        saved: dict[str, Any] = {"outcomes": [None] * len(rows), "usage": {}}
        # Process `number` of `number + 1` does exactly this part.
        if not parts.missing(self.task.verb, number + 1, number, number + 1):
            saved = parts.read(self.task.verb, number)
        outcomes = list(saved["outcomes"])
        # Failed requests are repeated: the server is at fault, not the row.
        due = [
            index
            for index, outcome in enumerate(outcomes)
            if outcome is None or outcome.get("reject") == NOT_ANSWERED
        ]
        if not due:
            return saved
        before = self._usage()
        new = self.task.outcomes([rows[index] for index in due], start)
        for index, outcome in zip(due, new, strict=True):
            outcomes[index] = as_json(outcome)
        usage = _sum(saved["usage"], self._usage(), minus=before)
        part = {"outcomes": outcomes, "usage": usage}
        parts.write(self.task.verb, number, part)
        return part

    def _usage(self) -> Usage:
        return {who: dict(client.usage()) for who, client in self.task.clients().items()}

    def _check(self, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) < min(ENOUGH, len(self.rows)):
            return
        failed = [each for each in outcomes if each.get("reject") in FAILURES]
        share, most = len(failed) / len(outcomes), self.task.settings.max_failure_share
        if share > most:
            reasons = Counter(str(each["reject"]) for each in failed)
            listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            raise JudgeError(
                f"{self.task.verb}: {len(failed)} of {len(outcomes)} rows ({share:.0%}) have no "
                f"usable reply ({listed}), more than max_failure_share {most:.0%}. The last cause: "
                f"{failed[-1]['detail']} What was answered is saved in {self.folder}."
            )
        self.task.check(outcomes)

    def _write(self, outcomes: Sequence[Outcome], usage: Usage) -> dict[str, Any]:
        """Write rows, rejects and report."""
        rows = [each["row"] for each in outcomes if "reject" not in each]
        rejects = [each for each in outcomes if "reject" in each]
        for name, lines in ((ROWS, rows), (REJECTED, rejects)):
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            atomic_write_text(self.folder / name, text)
        report = {
            "verb": self.task.verb,
            self.task.unit: len(outcomes),
            "rows": len(rows),
            "rejected": dict(Counter(each["reject"] for each in rejects).most_common()),
            "usage": usage,
            "inputs": self.task.inputs,
            **self.task.measures(outcomes),
        }
        atomic_write_json(self.folder / REPORT, as_json(report))
        if not rows:
            raise JudgeError(
                f"{self.task.verb}: none of {len(outcomes)} {self.task.unit} gave a row. Rejected: "
                f"{report['rejected']}. Why: {self.folder / REJECTED}."
            )
        return report


def _sum(*usages: Usage, minus: Usage | None = None) -> dict[str, dict[str, float]]:
    totals: dict[str, Counter[str]] = {}
    for usage in usages:
        for who, amounts in usage.items():
            totals.setdefault(who, Counter()).update(amounts)
    for who, amounts in (minus or {}).items():
        totals[who].subtract(amounts)
    return {who: dict(amounts) for who, amounts in totals.items() if amounts}
