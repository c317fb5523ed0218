"""Convert files to datasets with the processes of `datasets`.

Every row is read once, into a scratch dataset of traces. Repeated rows and the split by question
are known after all traces are counted; then traces become samples.
"""

import json
import os
import re
import shutil
import signal
import time
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace
from multiprocess import active_children

from hf_rlhf.errors import DataError
from hf_rlhf_rollouts import Rollout
from hf_rlhf_traces.blocks import Block, cores
from hf_rlhf_traces.format import Format, store_format
from hf_rlhf_traces.read_files import Reading, rejects_file, write_reject
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.rows import arrow_schema
from hf_rlhf_traces.samples import multiturn_rows, step_rows
from hf_rlhf_traces.shards import SPLITS, Row, dataset_writer
from hf_rlhf_traces.sources import blocks_of, rows_in
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

AFTER = ("build", "format")
"""Steps of a store that datasets are built from."""
_NEEDED = {"steps": "a result and a reply to it", "multiturn": "a reply"}
_SKIPPED = ("trailing_results", "empty_reply")
_BATCH = 16
"""Traces per batch; a trace may have many megabytes of samples."""
_WORTH_IT = 400
"""Traces per process; fewer are done before another process has started."""
_ENCODER = msgspec.msgpack.Encoder(enc_hook=str)
_FACTS = msgspec.msgpack.Decoder(Read | Rejected | None)
_TRACE = msgspec.msgpack.Decoder(Rollout)
_starting = Event()
"""Set while `datasets` starts processes in this one."""


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Converts a trace to the rows of a dataset."""

    dataset: str
    rows_of: Callable[[Rollout], tuple[Sequence[Row], Counter[str]]]
    """A pure function that returns the rows, and counts as in `hf_rlhf_traces.samples`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the rows, beside the traces and the format."""


def row_builders(
    names: Sequence[str], form: Format, drop: Mapping[str, Any]
) -> tuple[RowBuilder, ...]:
    """Return the builders of datasets; `drop` are the settings of `multiturn_rows`."""
    builders = (
        RowBuilder("multiturn", partial(multiturn_rows, form=form, **drop), drop),
        RowBuilder("steps", partial(step_rows, form=form)),
    )
    return tuple(builder for builder in builders if builder.dataset in names)


@dataclass(frozen=True)
class Build:
    """The datasets to build, and their source files."""

    reading: Reading
    form: Format
    builders: Sequence[RowBuilder]


def run_build(build: Build, *, workers: int | None = None, rows: "Dataset | None" = None) -> None:
    """Read files, or take the `rows` read by tasks, and build the datasets of a store.

    Raises RunFolderError if the store's folder holds other files or another process works in it;
    DataError if too many rows are rejected (listed in rejects.refused.jsonl), or no trace gives a
    sample.
    """
    reading = build.reading
    store, sources = Store.make(reading.out), reading.sources()
    # The next command removes a folder of this name that a killed process left.
    scratch = reading.out / f".build.{uuid.uuid4().hex}.tmp"
    with store.locked(), ExitStack() as at_end:
        at_end.callback(shutil.rmtree, scratch, ignore_errors=True)
        rows = rows or read_blocks(input_blocks(reading), reading.options, scratch, workers)
        with (
            store.recording("build", reading.settings(), replaces=True) as recording,
            rejects_file(reading.out) as rejects,
            reading.tallied(recording, sources) as tally,
        ):
            kept = _count_rows(rows, tally, rejects)
        store_format(store, build.form, overwrite=reading.overwrite)
        split = Split.of_report(store.report("build"))
        for builder in build.builders:
            name = builder.dataset
            with (
                store.recording(name, builder.settings, after=AFTER, replaces=True) as recording,
                dataset_writer(store.folder / "datasets", name) as write,
            ):
                counts = Counter[str]()
                for side, samples in _samples(kept, split, builder, workers, counts):
                    write(side, samples)
                recording.result.update(_report(name, counts, reading))


def input_blocks(reading: Reading) -> list[Block]:
    """Return the blocks of the input files, in order."""
    return list(chain.from_iterable(map(blocks_of, reading.files)))


def read_blocks(
    blocks: Sequence[Block], options: Options, folder: Path, workers: int | None
) -> "Dataset":
    """Return the outcome of each row of blocks, as a dataset in `folder`. Raises DataError."""
    from datasets import Dataset, Features, Value
    from datasets.exceptions import DatasetGenerationError

    features = Features({"facts": Value("large_binary"), "trace": Value("large_binary")})
    if not blocks:
        return Dataset.from_dict({"facts": [], "trace": []}, features=features)
    try:
        with _no_process_left():
            return Dataset.from_generator(
                _read_rows,
                features=features,
                cache_dir=str(folder),
                gen_kwargs={"blocks": list(blocks), "options": options},
                num_proc=_processes(workers, len(blocks)),
                writer_batch_size=100,  # rows may have megabytes
            )
    except DatasetGenerationError as error:
        # That of another process is a traceback as text.
        causes = re.findall(
            r"^(?!datasets)[\w.]+(?:Error|Exception): (.*)", str(error.__cause__), re.M
        )
        raise DataError(causes[-1] if causes else str(error.__cause__)) from error
    except RuntimeError as error:
        raise _worker_ended(error) from error


def _read_rows(blocks: list[Block], options: Options) -> Iterator[dict[str, bytes]]:
    for block in blocks:
        for where, raw in rows_in(block, options):
            row, trace = read_row(raw, where, options), b""
            if isinstance(row, Read):
                trace, row.trace = _ENCODER.encode(row.trace), None
            yield {"facts": _ENCODER.encode(row), "trace": trace}


def _processes(workers: int | None, most: int) -> int | None:
    count = min(cores() if workers is None else workers, most)
    return count if count > 1 else None


@contextmanager
def _no_process_left() -> Iterator[None]:
    """Let processes that `datasets` starts in the block end when this one is killed.

    Its manager would wait for ever, and with it all that read from a pipe which it holds open.
    """
    _starting.set()
    try:
        yield
    except BaseException as error:
        # `datasets` raises a TimeoutError in its place.
        interrupt = error if isinstance(error, KeyboardInterrupt) else error.__context__
        if not isinstance(interrupt, KeyboardInterrupt):
            raise
        for process in active_children():  # or the exit waits for a manager that was starting
            process.terminate()
        raise KeyboardInterrupt from error
    finally:
        _starting.clear()


def _watch_parent() -> None:
    if _starting.is_set():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


os.register_at_fork(after_in_child=_watch_parent)


def _worker_ended(error: RuntimeError) -> DataError:
    return DataError(
        f"{error} A worker process ended unexpectedly; most often the system killed it because "
        "memory ran out. Use fewer: --workers 1 works in this process alone."
    )


@dataclass(frozen=True)
class _Kept:
    """The traces to build samples from."""

    rows: "Dataset"
    indices: "array[int]"
    """Ids of the traces in `rows`."""
    ranks: "array[int]"
    """Keys of their questions."""
    names: Mapping[str, str]
    """Row index -> replacement for the row's own id."""


def _count_rows(rows: "Dataset", tally: Tally, rejects: IO[bytes]) -> _Kept:
    """Count all rows in order, and write the rejected rows."""
    indices, names = array("q"), dict[str, str]()
    facts = rows.select_columns("facts").with_format("arrow")
    encoded = (each for table in facts.iter(1000) for each in table["facts"])
    for index, each in enumerate(encoded):
        row = _FACTS.decode(each.as_buffer())
        if row is None:
            tally.noted["blank_lines"] += 1
            continue
        counted = tally.add(row)
        if isinstance(counted, Read):
            indices.append(index)
            if counted is not row:
                names[counted.where] = counted.id
        else:
            write_reject(rejects, counted)
    return _Kept(rows, indices, tally.ranks, names)


def _samples(
    kept: _Kept, split: Split, builder: RowBuilder, workers: int | None, counts: Counter[str]
) -> "Iterator[tuple[Side, pa.Table]]":
    """Yield the samples of each side in tables, and add to the counts."""
    import numpy as np

    is_held_out = np.frombuffer(kept.ranks, np.uint64) < np.uint64(split.cut)
    indices, environ = np.frombuffer(kept.indices, np.int64), os.environ
    for side, mask in zip(SPLITS, (~is_held_out, is_held_out), strict=True):
        traces = kept.rows.select(indices[mask])
        counts[f"traces {side}"] = len(traces)
        try:
            with _no_process_left():
                built = traces.map(
                    partial(_build_samples, builder=builder, names=kept.names),
                    batched=True,
                    batch_size=_BATCH,
                    writer_batch_size=_BATCH,
                    remove_columns=traces.column_names,
                    num_proc=_processes(workers, len(traces) // _WORTH_IT),
                    desc=f"{builder.dataset}, {side}",
                )
        except RuntimeError as error:
            raise _worker_ended(error) from error
        finally:
            os.environ = environ  # noqa: B003 - `datasets` leaves a copy in its place
        for table in built.with_format("arrow").iter(_BATCH):
            for text in table["counts"].to_pylist():
                counts.update(json.loads(text))
            if len(rows := _flat(table)):
                counts[f"rows {side}"] += len(rows)
                yield side, rows


def _build_samples(
    batch: Mapping[str, Sequence[bytes]], builder: RowBuilder, names: Mapping[str, str]
) -> "pa.Table":
    """Return a list of samples, and their counts, for each trace."""
    import pyarrow as pa

    rows, counts = [], []
    for encoded in batch["trace"]:
        trace = _TRACE.decode(encoded)
        samples, more = builder.rows_of(replace(trace, id=names.get(trace.where, trace.id)))
        more["traces_without_samples"] += not samples
        rows.append(samples)
        counts.append(json.dumps(more))
    kind = pa.list_(pa.struct(list(arrow_schema(builder.dataset))))
    return pa.table({"rows": pa.array(rows, kind), "counts": counts})


def _flat(table: "pa.Table") -> "pa.Table":
    """Return the samples of traces as the rows of a table."""
    import pyarrow as pa

    samples = table["rows"].combine_chunks().flatten()
    return pa.Table.from_arrays(samples.flatten(), [each.name for each in samples.type])


def _report(dataset: str, counts: Counter[str], reading: Reading) -> dict[str, Any]:
    """Return a dataset's report from its counts. Raises DataError without samples."""
    if not counts["samples"]:
        reasons = [f"{counts[reason]} {reason}" for reason in _SKIPPED if counts[reason]]
        raise DataError(
            f"{', '.join(reading.files[:3])}: no trace gives a sample of {dataset}, which needs "
            f"{_NEEDED[dataset]}. Cuts: {', '.join(reasons) or 'none'}."
        )
    report: dict[str, Any] = {
        "traces": {side: counts.pop(f"traces {side}", 0) for side in SPLITS},
        "samples": {side: counts.pop(f"rows {side}", 0) for side in SPLITS},
        "skipped": {reason: counts.pop(reason, 0) for reason in _SKIPPED},
    }
    del counts["samples"]  # the sum of both splits
    return {**report, **dict(sorted(counts.items()))}
