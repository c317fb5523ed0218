"""From the traces of a store to a dataset: each trace's rows, to the split of its question."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.trace import Trace, from_json
from hf_rlhf_traces.writing import dataset_written

TRACES = "traces.jsonl"
SKIPPED = ("trailing_results", "empty_reply")
MadeRows = tuple[Sequence[Mapping[str, Any]], Counter[str]]


def build(
    store: Store,
    dataset: str,
    settings: Mapping[str, Any],
    make: Callable[[Trace], MadeRows],
) -> Mapping[str, Any]:
    """Write a dataset of a store anew, and note what came of it; return that report.

    `make` gives the rows of a trace, and counts as `hf_rlhf_traces.samples` has them. Raises
    RunFolderError where the traces are not read, DataError where none gives a sample.
    """
    split = Split.of_report(store.report("read"))
    counts: Counter[str] = Counter()
    with (
        store.making(dataset, settings, after=("read", "format")) as report,
        dataset_written(store.folder / "datasets" / dataset, dataset) as writers,
    ):
        for trace in read_traces(store.folder / TRACES, title=dataset):
            side = split.of(trace.key)
            rows, more = make(trace)
            counts.update(more)
            counts[f"traces {side}"] += 1
            counts["traces_without_samples"] += not rows
            for row in rows:
                writers[side].add(row)
        if not counts["samples"]:
            raise DataError(
                f"{store.folder / TRACES}: no trace gives a sample of {dataset}, which needs a "
                f"reply to learn. Of the cuts: {_shown(counts)}."
            )
        report.update(_report(counts, {side: one.rows for side, one in writers.items()}))
    return report


def _shown(counts: Counter[str]) -> str:
    reasons = (f"{counts[reason]} {reason}" for reason in SKIPPED if counts[reason])
    return ", ".join(reasons) or "there is none"


def _report(counts: Counter[str], samples: Mapping[str, int]) -> dict[str, Any]:
    left_out = {*SKIPPED, "samples", *(f"traces {side}" for side in samples)}
    return {
        "traces": {side: counts[f"traces {side}"] for side in samples},
        "traces_without_samples": counts["traces_without_samples"],
        "samples": dict(samples),
        "skipped": {reason: counts[reason] for reason in SKIPPED},
        **{name: count for name, count in sorted(counts.items()) if name not in left_out},
    }


def read_traces(path: Path, *, title: str = "") -> Iterator[Trace]:
    """Yield the traces that `read` wrote. Raises DataError, with the line, for what it did not."""
    for number, line in enumerate(lines_shown(path, title), start=1):
        yield trace_of(line, f"{path}:{number}")


def trace_of(line: bytes, where: str) -> Trace:
    """Return the trace of a line. Raises DataError, naming `where`, if it is none."""
    import orjson

    try:
        return from_json(orjson.loads(line))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: is not a trace as `hf-rlhf traces read` writes them ({error!r}). Read the "
            "source anew, with --overwrite."
        ) from error


def lines_shown(path: Path, title: str) -> Iterator[bytes]:
    """Yield the lines of a file; how far it has been read is shown in a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        try:
            with progress.open(path, "rb", description=title) as file:
                yield from file
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error}.") from error
