"""What each step took in and what became of it: at every step, in = out + left out by reason."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.store import Store


@dataclass(frozen=True)
class Account:
    """The counts of one step."""

    step: str
    unit: str
    """What is counted: rows, cuts, samples."""
    taken: int
    kept: int
    left_out: Mapping[str, int]
    """Reason -> how many."""

    @property
    def reasons(self) -> str:
        """What was left out, in words."""
        texts = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        return ", ".join(texts) or "nothing"


def accounts(store: Store) -> list[Account]:
    """Return the counts of each step of a store that is done, in the order of use.

    Raises DataError, with the numbers, where those of a step do not add up.
    """
    steps = ("read", "multiturn", "steps", "summarize", "split_summary")
    all_accounts = [
        account
        for step in steps
        if store.state(step) == "done"
        for account in _accounts(step, store.report(step))
    ]
    odd = [step for step in all_accounts if step.taken != step.kept + sum(step.left_out.values())]
    if odd:
        lines = [
            f"{step.step}: {step.taken:,} {step.unit}, {step.kept:,} kept, left out: {step.reasons}"
            for step in odd
        ]
        raise DataError("The counts of these steps do not add up:\n" + "\n".join(lines))
    return all_accounts


def _accounts(step: str, report: Mapping[str, Any]) -> Iterator[Account]:
    if step == "read":
        yield Account(step, "rows", report["rows"], report["traces"], report["rejected"])
    elif step == "summarize":
        left_out = {**_prefixed(report["failed"]), "not tried": report["missing"]}
        yield Account(step, "samples", report["samples"], report["summarised"], left_out)
    elif step == "split_summary":
        left_out = {
            **report["filtered"],
            **_prefixed(report["failed"]),
            "not summarised": report["missing"],
        }
        samples = sum(report["samples"].values())
        yield Account(step, "samples", report["steps"], samples, left_out)
    else:
        samples = sum(report["samples"].values())
        yield Account(step, "cuts", report["cuts"], samples, report["skipped"])


def _prefixed(failed: Mapping[str, int]) -> dict[str, int]:
    return {f"failed: {reason}": count for reason, count in failed.items()}
