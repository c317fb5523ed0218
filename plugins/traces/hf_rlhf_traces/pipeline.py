"""From files to the shards of datasets in one pass: the worker that reads a trace builds its rows.

Repeated rows and the cut of the split are known only when all rows are read. The cut will be near
its ratio, so traces whose rank is not near it are built at once, the few others in a last shard.
Shards with repeated rows, and all shards if the cut is elsewhere (few questions), are built again.
"""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import replace

from hf_rlhf.steps import Recording
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.blocks import Block, in_order
from hf_rlhf_traces.building import (
    AFTER,
    RowBuilder,
    Shard,
    dataset_report,
    shard_size,
    shards_of,
)
from hf_rlhf_traces.format import Format, store_format
from hf_rlhf_traces.read_files import Reading, rejects_file, total_bytes, write_reject
from hf_rlhf_traces.reading import Read, Rejected, read_row
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.samples import multiturn_rows, step_rows
from hf_rlhf_traces.shards import ShardWriter, name_shards
from hf_rlhf_traces.sources import blocks_of, rows_in
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.tally import Tally
from hf_rlhf_traces.terminal import bars

NEAR = 0.01
"""Ranks this near to the ratio, as a share of all ranks, have no side yet."""


@dataclass(frozen=True, slots=True)
class Band:
    """The ranks near the ratio, where the cut will be unless there are few questions."""

    low: int
    high: int
    seed: int

    @classmethod
    def around(cls, ratio: float, seed: int) -> "Band":
        """Return the band around a ratio."""
        return cls(int((ratio - NEAR) * 2**64), int((ratio + NEAR) * 2**64), seed)

    def of(self, key: str) -> Side | None:
        """Return the side of a question, None if it is not decided yet."""
        position = rank(key, self.seed)
        if position < self.low:
            return "validation"
        return None if position < self.high else "train"


class ShardFacts(Struct):
    """The rows and counts of one shard."""

    rows: list[Read | Rejected | None]
    """Without their contents."""
    undecided: list[Block]
    """The traces whose side is not decided yet."""
    counts: dict[str, dict[str, int]]
    """Of each dataset."""


@dataclass(frozen=True)
class FileShards:
    """Builds shards from blocks of the input files, in a worker."""

    reading: Reading
    builders: Sequence[RowBuilder]
    folder: Path | None
    """With a folder for each dataset. None only counts."""
    split: Split | Band
    corrections: Mapping[str, str | None] = field(default_factory=dict)
    """Row -> the id that replaces its own; None leaves the row out."""

    def __call__(self, shard: Shard) -> ShardFacts:
        """Write a shard, replacing an earlier one."""
        facts = ShardFacts([], [], {})
        targets = [
            (builder, self._writer(builder, shard), Counter[str]()) for builder in self.builders
        ]
        for line, row in self._rows(shard):
            facts.rows.append(row)
            if isinstance(row, Read) and row.trace is not None:
                name = self.corrections.get(row.where, row.id)
                if (side := self.split.of(row.key)) is None:
                    facts.undecided.append(line)
                elif name is not None:
                    trace = replace(row.trace, id=name)
                    for builder, writer, counts in targets:
                        builder.add(trace, side, writer, counts)
                row.trace = None
        for builder, writer, counts in targets:
            if writer is not None:
                writer.close()
            facts.counts[builder.dataset] = dict(counts)
        return facts

    def _writer(self, builder: RowBuilder, shard: Shard) -> ShardWriter | None:
        if self.folder is None:
            return None
        folder = self.folder / builder.dataset
        folder.mkdir(exist_ok=True)
        return ShardWriter(folder, builder.dataset, shard.number)

    def _rows(self, shard: Shard) -> Iterator[tuple[Block, Read | Rejected | None]]:
        options = self.reading.options
        for block in shard.blocks:
            for line, where, raw in rows_in(block, options):
                yield line, read_row(raw, where, options)


FirstPass = Callable[[FileShards, Sequence[Shard]], Iterator[ShardFacts]]
"""Builds the shards of the first pass: here, or by tasks on a cluster."""


def input_shards(reading: Reading) -> list[Shard]:
    """Divide the input files into shards."""
    size = shard_size(total_bytes(reading.files))
    blocks = chain.from_iterable(blocks_of(file, size) for file in reading.files)
    return list(shards_of(blocks, size))


@dataclass(frozen=True)
class Build:
    """What is built of which files."""

    reading: Reading
    form: Format
    builders: Sequence[RowBuilder]

    def first_job(self, folder: Path | None) -> FileShards:
        """Return the builder of the first pass, when the cut is not known."""
        band = Band.around(self.reading.validation_ratio, self.reading.seed)
        return FileShards(self.reading, self.builders, folder, band)


def row_builders(
    names: Sequence[str], form: Format, drop: Mapping[str, Any]
) -> tuple[RowBuilder, ...]:
    """Return the builders of datasets; `drop` are the settings of `multiturn_rows`."""
    builders = (
        RowBuilder("multiturn", partial(multiturn_rows, form=form, **drop), drop),
        RowBuilder("steps", partial(step_rows, form=form)),
    )
    return tuple(builder for builder in builders if builder.dataset in names)


def run_build(
    build: Build,
    *,
    workers: int | None = None,
    folder: Path | None = None,
    first_pass: FirstPass | None = None,
) -> None:
    """Read files and build the datasets of a store. The traces are not written.

    `first_pass` reads the shards that other processes have built in `folder`. Raises RunFolderError
    when the store's folder holds other files or another process works in it; DataError when too
    many rows are rejected (rejects.refused.jsonl has them), or no trace gives a sample.
    """
    reading = build.reading
    store, sources = Store.make(reading.out), reading.sources()
    with store.locked(), _scratch_folder(reading.out, folder) as folder:
        job, shards = build.first_job(folder), input_shards(reading)
        facts = (first_pass or partial(in_order, workers=workers))(job, shards)
        with (
            store.recording("build", reading.settings(), replaces=True) as recording,
            rejects_file(reading.out) as rejects,
            reading.tallied(recording, sources) as tally,
        ):
            first = _count_rows(reading, shards, facts, tally, rejects)
        store_format(store, build.form, overwrite=reading.overwrite)
        split = Split.of_report(store.report("build"))
        exact = FileShards(reading, build.builders, folder, split, first.corrections)
        counts = _complete(first, exact, shards, workers)
        # Renamed, because after a kill between two moves tasks would count as finished.
        built = folder.rename(folder.with_name(f".shards.{uuid.uuid4().hex}.tmp"))
        try:
            for builder in build.builders:
                _record_dataset(store, builder, counts[builder.dataset], built, reading)
        finally:
            shutil.rmtree(built, ignore_errors=True)


def _record_dataset(
    store: Store, builder: RowBuilder, counts: Counter[str], built: Path, reading: Reading
) -> None:
    name = builder.dataset
    with (
        store.recording(name, builder.settings, after=AFTER, replaces=True) as recording,
        atomic_dir(store.folder / "datasets" / name, overwrite=True) as dataset,
    ):
        recording.result.update(dataset_report(name, counts, ", ".join(reading.files[:3])))
        for path in (built / name).glob("*.parquet"):
            shutil.move(path, dataset / path.name)
        name_shards(dataset)


def count_build(
    build: Build, *, workers: int | None = None
) -> tuple[Mapping[str, Any], dict[str, Mapping[str, Any]]]:
    """Return the reports of a build, of the rows and of each dataset, and write nothing.

    Raises DataError as `run_build` does.
    """
    reading, recording = build.reading, Recording()
    shards = input_shards(reading)
    facts = in_order(build.first_job(None), shards, workers=workers)
    with reading.tallied(recording, reading.sources(), dry_run=True) as tally:
        first = _count_rows(reading, shards, facts, tally, None)
    report = {**recording.result, **recording.notes}
    exact = FileShards(reading, build.builders, None, Split.of_report(report), first.corrections)
    counts = _complete(first, exact, shards, workers)
    files = ", ".join(reading.files[:3])
    return report, {name: dataset_report(name, counts[name], files) for name in counts}


@contextmanager
def _scratch_folder(out: Path, folder: Path | None) -> Iterator[Path]:
    # A folder of this name that a killed process left is removed by the next command.
    scratch = folder or out / f".build.{uuid.uuid4().hex}.tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        yield scratch
    except BaseException:
        if folder is None:  # the shards of other processes are kept
            shutil.rmtree(scratch, ignore_errors=True)
        raise
    shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class _FirstPass:
    """The result of the first pass."""

    counts: dict[int, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """Shard number -> dataset -> counts."""
    undecided: dict[int, list[Block]] = field(default_factory=dict)
    """By the number of the shard."""
    corrections: dict[str, str | None] = field(default_factory=dict)
    corrected: set[int] = field(default_factory=set)
    """Numbers of the shards with corrections."""


def _count_rows(
    reading: Reading,
    shards: Sequence[Shard],
    facts_of_shards: Iterable[ShardFacts],
    tally: Tally,
    rejects: IO[bytes] | None,
) -> _FirstPass:
    """Count the rows of all shards in order, and write the rejected ones."""
    first = _FirstPass()
    with bars() as progress:
        task = progress.add_task("build", total=total_bytes(reading.files) or None)
        for shard, facts in zip(shards, facts_of_shards, strict=True):
            first.counts[shard.number] = facts.counts
            first.undecided[shard.number] = facts.undecided
            for row in facts.rows:
                if row is None:
                    tally.noted["blank_lines"] += 1
                    continue
                counted = tally.add(row)
                if isinstance(counted, Rejected) and rejects is not None:
                    write_reject(rejects, counted)
                if counted is not row:
                    first.corrections[row.where] = getattr(counted, "id", None)
                    first.corrected.add(shard.number)
            progress.advance(task, shard.size)
    return first


def _complete(
    first: _FirstPass, exact: FileShards, shards: Sequence[Shard], workers: int | None
) -> dict[str, Counter[str]]:
    """Build the wrong shards again, and a last one of the undecided traces; return all counts."""
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
    undecided = [
        block
        for number, blocks in first.undecided.items()
        if number not in rebuilt
        for block in blocks
    ]
    if undecided:
        again.append(Shard(len(shards), tuple(undecided)))
    counts = dict(first.counts)
    for shard, facts in zip(again, in_order(exact, again, workers=workers), strict=True):
        counts[shard.number] = facts.counts
    totals = {builder.dataset: Counter[str]() for builder in exact.builders}
    for shard_counts in counts.values():
        for name, total in totals.items():
            total.update(shard_counts[name])
    return totals
