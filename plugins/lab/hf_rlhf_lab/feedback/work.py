"""Rows made part by part in a folder: a killed command continues, and nothing is paid for twice."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import JudgeError
from hf_rlhf.steps import Ledger, PartFiles
from hf_rlhf.storage import as_json, atomic_write_json, atomic_write_text
from hf_rlhf_lab.feedback.asking import NOT_ANSWERED, Failure

Row = Mapping[str, Any]
Outcome = Mapping[str, Any]
"""`row`: a row of the dataset that is written; or `reject`, its reason, and `detail`."""
PART = 100
"""Prompts after which the work is saved."""
ENOUGH = 20
"""Outcomes from which on too many failures stop the work."""
FAILURES = (NOT_ANSWERED, "empty", "cut off", "malformed")
ROWS, REJECTED, REPORT = "rows.jsonl", "rejected.jsonl", "report.json"


def rejected(failure: Failure, **row: Any) -> Outcome:
    """Return the outcome of a row without a usable reply."""
    return {"reject": failure.reason, "detail": failure.detail, **row}


@dataclass
class Work:
    """The prompts of one command, what is made of them, and its folder."""

    verb: str
    folder: Path
    inputs: Mapping[str, Any]
    """All that an outcome depends on."""
    rows: Sequence[Row]
    make: Callable[[Sequence[Row], int], Sequence[Outcome]]
    """Takes rows and the number of the first, returns an outcome for each."""
    usage: Callable[[], Mapping[str, Mapping[str, float]]]
    """Who was asked -> totals of this process."""
    check: Callable[[Sequence[Outcome]], None] = lambda _: None
    """Raises JudgeError when the outcomes so far show an annotator that cannot be used."""
    measure: Callable[[Sequence[Outcome]], Mapping[str, Any]] = lambda _: {}
    """Returns what else the report says of the outcomes."""
    max_failure_share: float = 0.5

    def run(self, *, overwrite: bool = False) -> dict[str, Any]:
        """Do what is left, write rows, rejects and report, and return the report.

        Raises JudgeError for an annotator that fails too often; what was answered is saved.
        """
        with self._parts(overwrite) as parts:
            outcomes: list[Outcome] = []
            used: list[Mapping[str, Mapping[str, float]]] = []
            for number, start in enumerate(range(0, len(self.rows), PART)):
                part = self._part(parts, number, start)
                outcomes += part["outcomes"]
                used.append(part["usage"])
                self._check(outcomes)
                self._progress(len(outcomes))
            return self._write(outcomes, _totals(used))

    @contextmanager
    def _parts(self, overwrite: bool) -> Iterator[PartFiles]:
        ledger = Ledger(self.folder, folder_option="--out")
        with ledger.locked():
            if overwrite:
                ledger.remove(self.verb)
            ledger.refuse_changed(self.verb, self.inputs)
            with ledger.recording(self.verb, self.inputs):
                pass  # from here on, other settings are refused
            parts = PartFiles(self.folder / "parts")
            parts.reset(self.inputs)
            yield parts

    def _part(self, parts: PartFiles, number: int, start: int) -> dict[str, Any]:
        rows = self.rows[start : start + PART]
        saved: dict[str, Any] = {"outcomes": [None] * len(rows), "usage": {}}
        # Of so many parts and processes, this part is the share of the last.
        if not parts.missing(self.verb, number + 1, number, number + 1):
            saved = parts.read(self.verb, number)
        outcomes = list(saved["outcomes"])
        # What was not answered is tried again: it is the server's fault, not the row's.
        due = [
            index
            for index, outcome in enumerate(outcomes)
            if outcome is None or outcome.get("reject") == NOT_ANSWERED
        ]
        if not due:
            return saved
        before = self.usage()
        made = self.make([rows[index] for index in due], start)
        for index, outcome in zip(due, made, strict=True):
            outcomes[index] = as_json(outcome)
        usage = _totals([saved["usage"], _difference(self.usage(), before)])
        part = {"outcomes": outcomes, "usage": usage}
        parts.write(self.verb, number, part)
        return part

    def _check(self, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) < min(ENOUGH, len(self.rows)):
            return
        failed = [each for each in outcomes if each.get("reject") in FAILURES]
        share = len(failed) / len(outcomes)
        if share > self.max_failure_share:
            reasons = Counter(str(each["reject"]) for each in failed)
            listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            raise JudgeError(
                f"{self.verb}: {len(failed)} of {len(outcomes)} rows ({share:.0%}) have no usable "
                f"reply ({listed}), more than max_failure_share {self.max_failure_share:.0%}. The "
                f"last cause: {failed[-1]['detail']} What was answered is saved in {self.folder}."
            )
        self.check(outcomes)

    def _progress(self, done: int) -> None:
        if done < len(self.rows):
            print(f"{self.verb}: {done:,} of {len(self.rows):,}", file=sys.stderr, flush=True)

    def _write(
        self, outcomes: Sequence[Outcome], usage: Mapping[str, Mapping[str, float]]
    ) -> dict[str, Any]:
        """Write rows, rejects and report."""
        rows = [each["row"] for each in outcomes if "reject" not in each]
        rejects = [each for each in outcomes if "reject" in each]
        _write_lines(self.folder / ROWS, rows)
        _write_lines(self.folder / REJECTED, rejects)
        report = {
            "verb": self.verb,
            "prompts": len(outcomes),
            "rows": len(rows),
            "rejected": dict(Counter(each["reject"] for each in rejects).most_common()),
            "usage": usage,
            "inputs": self.inputs,
            **self.measure(outcomes),
        }
        atomic_write_json(self.folder / REPORT, as_json(report))
        if not rows:
            raise JudgeError(
                f"{self.verb}: none of {len(outcomes)} prompts gave a row. Rejected: "
                f"{report['rejected']}. Why: {self.folder / REJECTED}."
            )
        return report


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    atomic_write_text(path, "".join(lines))


def _totals(parts: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    totals: dict[str, dict[str, float]] = {}
    for part in parts:
        for who, amounts in part.items():
            known = totals.setdefault(who, {})
            for name, amount in amounts.items():
                known[name] = known.get(name, 0.0) + amount
    return totals


def _difference(
    now: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    return {
        who: {name: amount - before[who].get(name, 0.0) for name, amount in amounts.items()}
        for who, amounts in now.items()
    }
