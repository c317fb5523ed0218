"""From the traces of a store to a dataset: each trace's rows, to the split of its question."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.columns import Batch, Part
from hf_rlhf_traces.engine import Block, Each, blocks, in_order, unreadable
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.terminal import bars
from hf_rlhf_traces.trace import Trace, decoded
from hf_rlhf_traces.writing import SPLITS, SplitWriter, dataset_written, written_lines

TRACES = "traces.jsonl"
AFTER = ("read", "format")
"""Steps of a store that datasets are made from."""
NEEDED = {"steps": "a result and a reply to it", "multiturn": "a reply"}
SKIPPED = ("trailing_results", "empty_reply")
MadeRows = tuple[Sequence[Mapping[str, Any]], Counter[str]]


@dataclass(frozen=True, slots=True)
class Made:
    """What a block of traces gives."""

    parts: Mapping[Side, list[Part]]
    counts: Counter[str]


@dataclass(frozen=True)
class Rows:
    """How traces become rows as they stand in files."""

    dataset: str
    make: Callable[[Trace], MadeRows]
    layout: Layout

    def made(self, traces: Iterable[tuple[Trace, Side]]) -> Made:
        """Build the rows of traces."""
        counts: Counter[str] = Counter()
        batches = {side: Batch(self.dataset, self.layout) for side in SPLITS}
        parts: dict[Side, list[Part]] = {side: [] for side in SPLITS}
        for trace, side in traces:
            rows, more = self.make(trace)
            counts.update(more)
            counts[f"traces {side}"] += 1
            counts["traces_without_samples"] += not rows
            for row in rows:
                if batches[side].add(row):
                    parts[side].append(batches[side].take())
        for side, batch in batches.items():
            if batch.rows:
                parts[side].append(batch.take())
        return Made(parts, counts)


@dataclass(frozen=True)
class Built:
    """Blocks of traces.jsonl to rows as they stand in files; a worker's part of `build`."""

    rows: Rows
    split: Split

    def __call__(self, block: Block) -> Made:
        """Build the rows of a block. Raises DataError for a line that is no trace."""
        traces = (trace_of(line, f"{block.path}:{at}") for at, line in block.lines())
        return self.rows.made((trace, self.split.of(trace.key)) for trace in traces)


def build(
    store: Store,
    rows: Rows,
    settings: Mapping[str, Any],
    *,
    workers: int | None = None,
    each: Each | None = None,
) -> Mapping[str, Any]:
    """Write a dataset of a store anew, and note what came of it; return that report.

    `rows.make` gives the rows of a trace, and counts as `hf_rlhf_traces.samples` has them; it is
    pure, and is sent to `workers` processes (None: one for each core), whose number changes nothing
    of what is written; `each` has blocks built in another way. Raises RunFolderError where the
    traces are not read, DataError where none gives a sample.
    """
    read = store.report("read")
    split = Split.of_report(read)
    _check_whole(store.folder / TRACES, read["bytes"])
    counts: Counter[str] = Counter()
    folder = store.folder / "datasets" / rows.dataset
    with (
        store.making(rows.dataset, settings, after=AFTER, replacing=True) as report,
        dataset_written(folder, rows.dataset, rows.layout) as writers,
        _shown_blocks(store.folder / TRACES, rows.dataset) as coming,
    ):
        each = each or partial(in_order, workers=workers)
        for made in each(Built(rows, split), coming):
            append(made, writers, counts)
        report.update(reported(store, rows.dataset, counts, writers))
    return report


def _check_whole(path: Path, size: int) -> None:
    there = path.stat().st_size if path.exists() else 0
    if there != size:
        raise DataError(
            f"{path} has {there:,} bytes, and was written with {size:,}: it was changed since. "
            "Read the source anew: the same `hf-rlhf traces read` does so."
        )


def append(made: Made, writers: Mapping[Side, SplitWriter], counts: Counter[str]) -> None:
    """Write what a block gave, and add up its counts."""
    counts.update(made.counts)
    for side, parts in made.parts.items():
        for part in parts:
            writers[side].append(part)


def reported(
    store: Store, dataset: str, counts: Counter[str], writers: Mapping[Side, SplitWriter]
) -> dict[str, Any]:
    """Return the report of a dataset. Raises DataError where there is no sample."""
    if not counts["samples"]:
        raise DataError(
            f"{store.folder / TRACES}: no trace gives a sample of {dataset}, which needs "
            f"{NEEDED[dataset]}. Of the cuts: {_shown(counts)}."
        )
    return _report(counts, {side: one.rows for side, one in writers.items()})


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


def trace_of(line: bytes, where: str) -> Trace:
    """Return the trace of a line. Raises DataError, naming `where`, if it is none."""
    try:
        return decoded(line)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: is not a trace as `hf-rlhf traces read` writes them ({error!r}). Read the "
            "source anew, with --overwrite."
        ) from error


def lines_shown(path: Path, title: str) -> Iterator[bytes]:
    """Yield the lines of a file; how far it has been read is shown in a terminal.

    Where JSON Lines were not written, the rows of the Parquet file beside are given as lines.
    """
    if not path.exists():
        yield from written_lines(path)
        return
    with bars() as progress:
        try:
            with progress.open(path, "rb", description=title) as file:
                yield from file
        except OSError as error:
            raise unreadable(path, error) from error


@contextmanager
def _shown_blocks(path: Path, title: str) -> Iterator[Iterator[Block]]:
    """Give the blocks of a file; how many have been taken is shown in a terminal."""

    def coming() -> Iterator[Block]:
        for block in blocks(path):
            progress.advance(task, block.size)
            yield block

    with bars() as progress:
        task = progress.add_task(title, total=path.stat().st_size)
        yield coming()
