"""Store summaries in parts of `PART` samples each, in the order of the samples.

An outcome is a summary (`summary_outcome`) or the reason for its absence (`failure_outcome`).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

from hf_rlhf.steps import PartFiles
from hf_rlhf_traces.summaries.summary import Summary

FOLDER = "summaries"
PART = 200
KIND = "summaries"
Row = Mapping[str, Any]
Outcome = Mapping[str, Any]


def summary_outcome(summary: Summary, verbatim: Iterable[bool], replies: int = 0) -> Outcome:
    """Return the stored form of a summary.

    `verbatim` records for each quote whether it occurs in the context; `replies` is the number of
    model replies it took.
    """
    quotes = [
        {"title": quote.title, "text": quote.text, "verbatim": is_verbatim}
        for quote, is_verbatim in zip(summary.quotes, verbatim, strict=True)
    ]
    text = {"question": summary.question, "reasoning": summary.reasoning}
    return {**text, "quotes": quotes, "replies": replies}


def failure_outcome(reason: str, detail: str) -> Outcome:
    """Return the stored form of a failed sample."""
    return {"failed": reason, "detail": detail}


class SummaryParts:
    """The outcomes of all samples. Memory holds only parts with samples in progress."""

    def __init__(self, folder: Path, inputs: Mapping[str, Any]) -> None:
        """Open the parts in `folder`; parts with other inputs are deleted."""
        self._files = PartFiles(folder)
        self._files.reset(inputs)
        self._open: dict[int, list[Outcome | None]] = {}
        self._due: dict[int, int] = {}
        """Part -> how many of its samples are under way."""

    def due(self, rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
        """Yield the samples without a summary, each with its number."""
        samples = iter(rows)
        for part in count():
            if not (group := list(islice(samples, PART))):
                return
            outcomes = read_part(self._files, part, len(group))
            due = [
                position
                for position, outcome in enumerate(outcomes)
                if outcome is None or "failed" in outcome
            ]
            if due:
                self._open[part], self._due[part] = outcomes, len(due)
                yield from ((part * PART + position, group[position]) for position in due)

    def save(self, number: int, outcome: Outcome) -> None:
        """Store the outcome of a sample; write a part when none of its samples is in progress."""
        part, position = divmod(number, PART)
        self._open[part][position] = outcome
        self._due[part] -= 1
        if not self._due[part]:
            self._files.write(KIND, part, self._open.pop(part))

    def flush(self) -> None:
        """Write the parts with samples still in progress."""
        for part, outcomes in self._open.items():
            self._files.write(KIND, part, outcomes)
        self._open.clear()


def read_part(files: PartFiles, part: int, size: int) -> list[Outcome | None]:
    """Return the outcomes of a part; for a missing part, `size` times None."""
    # Process `part` of `part + 1` does exactly this part.
    if files.missing(KIND, part + 1, process=part, processes=part + 1):
        return [None] * size
    outcomes: list[Outcome | None] = files.read(KIND, part)
    return outcomes


def stored_outcomes(folder: Path) -> Iterator[Outcome | None]:
    """Yield the outcome of each sample in order, then None without end (not tried yet)."""
    files = PartFiles(folder)
    for part in count():
        yield from read_part(files, part, PART)
