"""What went into each step and what became of it: at every step, in = out + left out by reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf.storage import load_record
from hf_rlhf_traces.store import Store


@dataclass(frozen=True)
class Line:
    """One step, or a part of one."""

    step: str
    what: str
    """What is counted: rows, cuts, samples."""
    given: int
    kept: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many."""

    @property
    def adds_up(self) -> bool:
        """Whether nothing is missing, and nothing is there twice."""
        return self.given == self.kept + sum(self.left_out.values())

    @property
    def told(self) -> str:
        """What was left out, in words."""
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items() if count]
        return ", ".join(reasons) or "nothing"


def reconciliation(store: Store) -> list[Line]:
    """Return a line for each step of a store that is done, in the order of use."""
    found = [
        line
        for step, lines in _OF_STEPS.items()
        if store.state(step) == "done"
        for line in lines(store.report(step))
    ]
    return [*found, *_handed_on(found)]


def _handed_on(lines: Sequence[Line]) -> list[Line]:
    """Return a line for each step that should take all that another one made."""
    by_step = {(one.step, one.what): one for one in lines}
    return [
        Line(f"{giver} to {taker}", what, by_step[giver, made].kept, by_step[taker, what].given)
        for giver, made, taker, what in _HANDS_ON
        if {(giver, made), (taker, what)} <= by_step.keys()
    ]


def check(lines: Sequence[Line]) -> None:
    """Raise DataError, with the numbers, where a step's do not add up."""
    odd = [f"{one.step}: {one.given:,} {one.what}, {one.kept:,} kept, left out: {one.told}"
           for one in lines if not one.adds_up]  # fmt: skip
    if odd:
        raise DataError("What went in is not what came out and was left out:\n" + "\n".join(odd))


def as_markdown(lines: Sequence[Line]) -> str:
    """Return the lines as a table."""
    rows = [
        f"| {one.step} | {one.given:,} {one.what} | {one.kept:,} | {one.told} |" for one in lines
    ]
    head = ["| step | in | out | left out |", "|---|---:|---:|---|"]
    return "\n".join([*head, *rows]) + "\n"


def of_training(run: Path) -> list[Line]:
    """Return what each phase of a run was trained on: a line for each, of its data's own report."""
    phases = sorted((run / "phases").glob("*/run.json")) or [run / "run.json"]
    return [line for path in phases for line in _of_phase(path)]


def _of_phase(path: Path) -> list[Line]:
    record = load_record(path.parent)
    report = record["data"]["report"]
    what = f"samples of {report['form']}"
    step = f"train {path.parent.name}"
    return [Line(step, what, report["rows_read"], report["kept"], report["dropped"])]


def of_evaluation(store: Store) -> list[Line]:
    """Return of how many validation samples each model was measured, in each task."""
    results = json.loads((store.folder / "eval" / "results.json").read_text(encoding="utf-8"))
    found = []
    for label, model in results["models"].items():
        for task, told in model["tasks"].items():
            there = results["data"][task]
            left = {
                "beyond --num_samples": there["rows"] - there["samples"],
                "too long for the model": told["too_long"],
            }
            step = f"eval {label} {task}"
            found.append(
                Line(step, f"{there['split']} samples", there["rows"], told["samples"], left)
            )
    return found


def _read(report: Mapping[str, Any]) -> list[Line]:
    return [Line("read", "rows", report["rows"], report["traces"], report["rejected"])]


def _cut(step: str) -> Any:
    def lines(report: Mapping[str, Any]) -> list[Line]:
        traces, without = sum(report["traces"].values()), report["traces_without_samples"]
        samples = sum(report["samples"].values())
        return [
            Line(step, "traces", traces, traces - without, {"without a sample": without}),
            Line(step, "cuts", report["cuts"], samples, report["skipped"]),
        ]

    return lines


def _summarised(report: Mapping[str, Any]) -> list[Line]:
    left = {**_named("failed: ", report["failed"]), "not tried": report["missing"]}
    return [Line("summarize", "samples", report["samples"], report["summarised"], left)]


def _parted(report: Mapping[str, Any]) -> list[Line]:
    left = {**_named("", report["filtered"]), **_named("failed: ", report["failed"]),
            "not summarised": report["missing"]}  # fmt: skip
    samples = sum(report["samples"].values())
    return [Line("split_summary", "samples", report["steps"], samples, left)]


def _named(before: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {f"{before}{reason}": count for reason, count in counts.items()}


_OF_STEPS = {
    "read": _read,
    "multiturn": _cut("multiturn"),
    "steps": _cut("steps"),
    "summarize": _summarised,
    "split_summary": _parted,
}

_HANDS_ON = (
    *(("read", "rows", step, "traces") for step in ("multiturn", "steps")),
    *(("steps", "cuts", step, "samples") for step in ("summarize", "split_summary")),
)
"""What one step makes (it, and what it counts) and another takes all of."""
