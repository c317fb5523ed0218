"""From files to the shards of `steps` in one pass: the worker that reads a trace builds its rows.

Two things are known only when all rows are read: which ones repeat others, and where the split by
question lies. The split will be near to its ratio, so rows are built at once of the traces whose
rank is not near to it, and of the few others in the end, in a last shard. Shards with repeated
rows, and all shards if the split lies elsewhere (few questions), are built again.
"""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hf_rlhf.steps import Recording
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.blocks import Block, in_order
from hf_rlhf_traces.building import (
    AFTER,
    RowBuilder,
    Shard,
    build,
    dataset_report,
    shard_size,
    shards_of,
)
from hf_rlhf_traces.format import Format, store_format
from hf_rlhf_traces.read_files import (
    Reading,
    has_traces,
    read_item,
    replaced,
    total_bytes,
    write_reject,
)
from hf_rlhf_traces.reading import Read, Rejected
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.samples import step_rows
from hf_rlhf_traces.shards import ShardWriter, name_shards
from hf_rlhf_traces.sources import blocks_of, rows_in
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import REJECTS, TRACES, Store
from hf_rlhf_traces.terminal import bars

DATASET = "steps"
NEAR = 0.01
"""How near to the ratio, as a share of all ranks, a question's side is not known at once."""


@dataclass(frozen=True, slots=True)
class Band:
    """The ranks near to the ratio: the split will lie there, unless there are few questions."""

    low: int
    high: int
    seed: int

    @classmethod
    def around(cls, ratio: float, seed: int) -> "Band":
        """Return the band around a ratio."""
        return cls(int((ratio - NEAR) * 2**64), int((ratio + NEAR) * 2**64), seed)

    def of(self, key: str) -> Side | None:
        """Return the side of a question, or None where it is not known yet."""
        position = rank(key, self.seed)
        if position < self.low:
            return "validation"
        return None if position < self.high else "train"


class ShardFacts(Struct):
    """What came of the input of a shard."""

    rows: list[Read | Rejected | None]
    """Without their contents."""
    undecided: list[Block]
    """Where the traces stand whose side was not known."""
    counts: dict[str, int]


@dataclass(frozen=True)
class FileShards:
    """Builds shards from blocks of the files that are read; a worker's part of the pipeline."""

    reading: Reading
    form: Format
    folder: Path
    split: Split | Band
    corrections: Mapping[str, str | None] = field(default_factory=dict)
    """Place of a row -> its id, if that is another than its own; None leaves the row out."""

    def __call__(self, shard: Shard) -> ShardFacts:
        """Write a shard, in place of one that is there."""
        facts, counts = ShardFacts([], [], {}), Counter[str]()
        builder = RowBuilder(DATASET, partial(step_rows, form=self.form))
        writer = ShardWriter(self.folder, DATASET, shard.number)
        for line, row in self._rows(shard):
            facts.rows.append(row)
            if isinstance(row, Read) and row.trace is not None:
                name = self.corrections.get(row.where, row.id)
                if (side := self.split.of(row.key)) is None:
                    facts.undecided.append(line)
                elif name is not None:
                    builder.add(replace(row.trace, id=name), side, writer, counts)
                row.body, row.trace = b"", None
        writer.close()
        facts.counts = dict(counts)
        return facts

    def _rows(self, shard: Shard) -> Iterator[tuple[Block, Read | Rejected | None]]:
        options = self.reading.options
        for block in shard.blocks:
            for line, where, item in rows_in(block, options):
                yield line, read_item(where, item, options)


FirstPass = Callable[[FileShards, Sequence[Shard]], Iterator[ShardFacts]]
"""How the shards are built that do not depend on each other: here, or by tasks on a cluster."""


def input_shards(reading: Reading) -> list[Shard]:
    """Return the shards of what is read."""
    size = shard_size(total_bytes(reading.files))
    coming = chain.from_iterable(blocks_of(file, size) for file in reading.files)
    return list(shards_of(coming, size))


def first_job(reading: Reading, form: Format, folder: Path) -> FileShards:
    """Return what builds shards before the split is known."""
    return FileShards(reading, form, folder, Band.around(reading.validation_ratio, reading.seed))


def run_pipeline(
    reading: Reading,
    form: Format,
    *,
    workers: int | None = None,
    folder: Path | None = None,
    first_pass: FirstPass | None = None,
) -> Mapping[str, Any]:
    """Read files into a store and build its steps; return the report of the steps.

    Traces are not written. `first_pass` gives what was built into `folder` by other processes.
    Raises as `read` and `build` do.
    """
    store, sources = Store.make(reading.out), reading.sources()
    with store.locked():
        if reading.is_done(store, sources) and has_traces(store):
            store_format(store, form, overwrite=reading.overwrite)
            return build(store, RowBuilder(DATASET, partial(step_rows, form=form)), {},
                         workers=workers)  # fmt: skip
        with _scratch_folder(reading.out, folder) as folder:
            job, shards = first_job(reading, form, folder), input_shards(reading)
            coming = (first_pass or partial(in_order, workers=workers))(job, shards)
            with store.recording("read", reading.settings(), replaces=True) as recording:
                first = _read(reading, shards, coming, recording, sources)
            (reading.out / TRACES).unlink(missing_ok=True)  # those of another reading
            store_format(store, form, overwrite=reading.overwrite)
            with (
                store.recording(DATASET, {}, after=AFTER, replaces=True) as recording,
                atomic_dir(store.folder / "datasets" / DATASET, overwrite=True) as dataset,
            ):
                split = Split.of_report(store.report("read"))
                exact = FileShards(reading, form, folder, split, first.corrections)
                counts = _complete(first, exact, shards, workers)
                recording.result.update(
                    dataset_report(DATASET, counts, ", ".join(reading.files[:3]))
                )
                _move_shards(folder, dataset)
                name_shards(dataset)
    return store.report(DATASET)


def _move_shards(folder: Path, dataset: Path) -> None:
    """Move the shards of a folder, which no longer exists from the first move on.

    Else tasks would be taken for finished whose shards were moved by a process killed since.
    """
    emptied = folder.rename(folder.with_name(f".shards.{uuid.uuid4().hex}.tmp"))
    try:
        for path in emptied.glob("*.parquet"):
            shutil.move(path, dataset / path.name)
    finally:
        shutil.rmtree(emptied, ignore_errors=True)


@contextmanager
def _scratch_folder(out: Path, folder: Path | None) -> Iterator[Path]:
    # Such a name is removed by the next command if this process is killed.
    scratch = folder or out / f".pipeline.{uuid.uuid4().hex}.tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        yield scratch
    except BaseException:
        if folder is None:  # or what other processes built would be lost
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class _FirstPass:
    """What is known when all rows are read."""

    counts: dict[int, Mapping[str, int]] = field(default_factory=dict)
    """Of each shard, by its number."""
    undecided: dict[int, list[Block]] = field(default_factory=dict)
    """By the number of the shard in whose input they are."""
    corrections: dict[str, str | None] = field(default_factory=dict)
    corrected: set[int] = field(default_factory=set)
    """Numbers of the shards with corrections."""


def _read(
    reading: Reading,
    shards: Sequence[Shard],
    coming: Iterator[ShardFacts],
    recording: Recording,
    sources: Sequence[Mapping[str, Any]],
) -> _FirstPass:
    """Count the rows of all shards in order, and write the rejected ones."""
    first = _FirstPass()
    with (
        replaced(reading.out, REJECTS) as (rejects,),
        reading.tallied(recording, sources) as tally,
        bars() as progress,
    ):
        task = progress.add_task("read and build", total=total_bytes(reading.files) or None)
        for shard, facts in zip(shards, coming, strict=True):
            first.counts[shard.number] = facts.counts
            first.undecided[shard.number] = facts.undecided
            for row in facts.rows:
                if row is None:
                    tally.noted["blank_lines"] += 1
                    continue
                counted = tally.add(row)
                if isinstance(counted, Rejected):
                    write_reject(rejects, counted)
                if counted is not row:
                    first.corrections[row.where] = getattr(counted, "id", None)
                    first.corrected.add(shard.number)
            progress.advance(task, shard.size)
    return first


def _complete(
    first: _FirstPass, exact: FileShards, shards: Sequence[Shard], workers: int | None
) -> Counter[str]:
    """Build again the shards that came out wrong, and a last one of what was undecided."""
    assert isinstance(exact.split, Split)
    band = Band.around(exact.split.ratio, exact.split.seed)
    outside = not band.low <= exact.split.cut <= band.high
    again = [
        shard
        for shard in shards
        if outside
        or shard.number in first.corrected
        or any(not block.size for block in first.undecided[shard.number])
    ]
    rebuilt = {shard.number for shard in again}
    left = [
        block
        for number, blocks in first.undecided.items()
        if number not in rebuilt
        for block in blocks
    ]
    last = [Shard(len(shards), tuple(left))] if left else []
    counts = dict(first.counts)
    for shard, facts in zip(
        [*again, *last], in_order(exact, [*again, *last], workers=workers), strict=True
    ):
        counts[shard.number] = facts.counts
    total: Counter[str] = Counter()
    for shard_counts in counts.values():
        total.update(shard_counts)
    return total
