"""From traces to the shards of a dataset: a trace's rows go to the split of its question."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from hf_rlhf.errors import DataError
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.blocks import Block, blocks, in_order, unreadable
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.shards import SPLITS, Row, ShardWriter, name_shards
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import TRACES, Store
from hf_rlhf_traces.terminal import bars
from hf_rlhf_traces.trace import Trace, decoded

AFTER = ("read", "format")
"""Steps of a store that datasets are made from."""
SHARD = 32 << 20
"""Bytes of input for a shard, at least."""
MOST_SHARDS = 2_000
"""The Hub takes 25,000 files in a commit, and readers open every one."""
_NEEDED = {"steps": "a result and a reply to it", "multiturn": "a reply"}
_SKIPPED = ("trailing_results", "empty_reply")


class Shard(Struct, frozen=True):
    """The input of one shard."""

    number: int
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Bytes of input, as far as they are known before it is read."""
        return sum(block.size for block in self.blocks)


def shards_of(coming: Iterable[Block], size: int) -> Iterator[Shard]:
    """Yield shards of blocks that follow each other: small files share one of up to `size` bytes.

    A file that can only be read from its start is a shard alone.
    """
    number, pending, total = 0, list[Block](), 0
    for block in coming:
        if pending and (not block.size or not pending[-1].size or total + block.size > size):
            yield Shard(number, tuple(pending))
            number, pending, total = number + 1, [], 0
        pending.append(block)
        total += block.size
    if pending:
        yield Shard(number, tuple(pending))


def shard_size(total: int) -> int:
    """Return how many bytes of input a shard has, of `total` bytes."""
    return max(SHARD, total // MOST_SHARDS)


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """How a trace becomes the rows of a dataset."""

    dataset: str
    rows_of: Callable[[Trace], tuple[Sequence[Row], Counter[str]]]
    """A pure function: the rows, and counts as `hf_rlhf_traces.samples` has them."""

    def add(self, trace: Trace, side: Side, writer: ShardWriter, counts: Counter[str]) -> None:
        """Write the rows of a trace, and count them."""
        rows, more = self.rows_of(trace)
        counts.update(more)
        counts[f"traces {side}"] += 1
        counts[f"rows {side}"] += len(rows)
        counts["traces_without_samples"] += not rows
        writer.add(side, rows)


@dataclass(frozen=True, slots=True)
class TraceShards:
    """Builds shards from blocks of traces.jsonl; a worker's part of `build`."""

    builder: RowBuilder
    split: Split
    folder: Path

    def __call__(self, shard: Shard) -> Counter[str]:
        """Write a shard. Raises DataError for a line that is no trace."""
        counts: Counter[str] = Counter()
        writer = ShardWriter(self.folder, self.builder.dataset, shard.number)
        for block in shard.blocks:
            for trace in traces_in(block):
                self.builder.add(trace, self.split.of(trace.key), writer, counts)
        writer.close()
        return counts


def traces_in(block: Block) -> Iterator[Trace]:
    """Yield the traces of a block of traces.jsonl. Raises DataError for a line that is none."""
    try:
        with Path(block.path).open("rb", buffering=1 << 20) as file:
            file.seek(block.start)
            end, number = block.start + block.size, block.line
            while file.tell() < end:
                yield _trace(file.readline(), f"{block.path}:{number}")
                number += 1
    except OSError as error:
        raise unreadable(block.path, error) from error


def _trace(line: bytes, where: str) -> Trace:
    try:
        return decoded(line)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: is not a trace as `hf-rlhf traces read` writes them ({error!r}). Read the "
            "source again, with --overwrite."
        ) from error


def build(
    store: Store,
    builder: RowBuilder,
    settings: Mapping[str, Any],
    *,
    workers: int | None = None,
) -> Mapping[str, Any]:
    """Write a dataset from the traces of a store, and return the report.

    `workers` processes (None: one for each core) change nothing of what is written. Raises
    RunFolderError where the traces are not read, DataError where none gives a sample.
    """
    read = store.report("read")
    path = store.folder / TRACES
    _check_whole(path, read.get("bytes"), store)
    shards = list(shards_of(blocks(path, size := shard_size(read["bytes"])), size))
    counts: Counter[str] = Counter()
    with (
        store.recording(builder.dataset, settings, after=AFTER, replaces=True) as recording,
        atomic_dir(store.folder / "datasets" / builder.dataset, overwrite=True) as folder,
        bars() as progress,
    ):
        task = progress.add_task(builder.dataset, total=read["bytes"])
        work = TraceShards(builder, Split.of_report(read), folder)
        for shard, more in zip(shards, in_order(work, shards, workers=workers), strict=True):
            counts.update(more)
            progress.advance(task, shard.size)
        recording.result.update(dataset_report(builder.dataset, counts, str(path)))
        name_shards(folder)
    return store.report(builder.dataset)


def _check_whole(path: Path, size: int | None, store: Store) -> None:
    if size is None:
        raise DataError(
            f"{path} is not there: `pipeline` writes no traces. First: hf-rlhf traces read FILE "
            f"--out {store.folder}, with the same files and options."
        )
    there = path.stat().st_size if path.exists() else 0
    if there != size:
        raise DataError(
            f"{path} has {there:,} bytes, and was written with {size:,}: it was changed since. "
            "Read the source again: the same `hf-rlhf traces read` does so."
        )


def dataset_report(dataset: str, counts: Counter[str], source: str) -> dict[str, Any]:
    """Return the report of a dataset from its counts. Raises DataError where there is no sample."""
    if not counts["samples"]:
        reasons = [f"{counts[reason]} {reason}" for reason in _SKIPPED if counts[reason]]
        raise DataError(
            f"{source}: no trace gives a sample of {dataset}, which needs {_NEEDED[dataset]}. Of "
            f"the cuts: {', '.join(reasons) or 'there is none'}."
        )
    left_out = {*_SKIPPED, "samples"}
    others = {
        name: count
        for name, count in sorted(counts.items())
        if name not in left_out and not name.startswith(("traces ", "rows "))
    }
    return {
        "traces": {side: counts[f"traces {side}"] for side in SPLITS},
        "samples": {side: counts[f"rows {side}"] for side in SPLITS},
        "skipped": {reason: counts[reason] for reason in _SKIPPED},
        **others,
    }
