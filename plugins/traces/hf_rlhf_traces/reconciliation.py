"""Rows in and out of each step of a store: in = out + left out, by reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.store import Store


@dataclass(frozen=True)
class Account:
    """The counts of a step."""

    step: str
    unit: str
    """The counted unit: rows, cuts, samples."""
    rows_in: int
    rows_out: int
    left_out: Mapping[str, int]
    """Reason -> count."""

    @property
    def reasons(self) -> str:
        """Return the reasons for leaving rows out, with counts."""
        texts = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        return ", ".join(texts) or "nothing"

    def cells(self) -> tuple[str, str, str]:
        """Return the cells of a table: in, used, left out."""
        return f"{self.rows_in:,} {self.unit}", f"{self.rows_out:,}", self.reasons


def accounts(store: Store) -> list[Account]:
    """Return the counts of each completed step of a store, in the order of use.

    Raises DataError, with the numbers, if a step's counts do not add up.
    """
    steps = ("build", "multiturn", "steps", "summarize", "split_summary")
    done = [_account(name, store.report(name)) for name in steps if store.state(name) == "done"]
    wrong = [
        f"{each.step}: {each.rows_in:,} {each.unit}, {each.rows_out:,} kept, left out: "
        f"{each.reasons}"
        for each in done
        if each.rows_in != each.rows_out + sum(each.left_out.values())
    ]
    if wrong:
        raise DataError("The counts of these steps do not add up:\n" + "\n".join(wrong))
    return done


def _account(step: str, report: Mapping[str, Any]) -> Account:
    if step == "build":
        return Account(step, "rows", report["rows"], report["traces"], report["rejected"])
    failed = {f"failed: {why}": count for why, count in report.get("failed", {}).items()}
    if step == "summarize":
        left_out = {**failed, "not tried": report["missing"]}
        return Account(step, "samples", report["samples"], report["summarised"], left_out)
    samples = sum(report["samples"].values())
    if step == "split_summary":
        left_out = {**report["filtered"], **failed, "not summarised": report["missing"]}
        return Account(step, "samples", report["steps"], samples, left_out)
    return Account(step, "cuts", report["cuts"], samples, report["skipped"])
