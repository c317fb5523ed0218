"""Reading files into a store: every row is a trace in traces.jsonl, or is in rejects.jsonl."""

import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any

import msgspec

from hf_rlhf.data import dataset_commit
from hf_rlhf.errors import ConfigError, DataError, Problem, RunFolderError
from hf_rlhf.steps import Recording
from hf_rlhf_traces.blocks import Block, in_order
from hf_rlhf_traces.decontamination import evaluation_set
from hf_rlhf_traces.reading import Options, Read, Rejected, read_line, read_values
from hf_rlhf_traces.sources import Item, blocks_of, files_of, is_seekable, rows_in
from hf_rlhf_traces.split import check_ratio
from hf_rlhf_traces.store import REFUSED, REJECTS, TRACES, Store
from hf_rlhf_traces.tally import Tally
from hf_rlhf_traces.terminal import bars


@dataclass(frozen=True)
class Reading:
    """What is read, how, and into which folder."""

    files: Sequence[str]
    """As `files_of` returns them."""
    out: Path
    options: Options
    validation_ratio: float = 0.1
    seed: int = 42
    max_rejected_share: float = 0.05
    overwrite: bool = False

    @classmethod
    def of(cls, sources: Sequence[str], out: Path, options: Options, **others: Any) -> "Reading":
        """Return the reading of files, folders and Hub datasets.

        Raises DataError for a source that is none of them, and ConfigError for a share that is not
        between 0 and 1.
        """
        reading = cls(files_of(sources, out, options), out, options, **others)
        check_ratio(reading.validation_ratio)
        if not 0 <= (share := reading.max_rejected_share) <= 1:
            fix = "Give a share between 0 and 1, such as 0.05."
            raise ConfigError([Problem("--max_rejected_share", f"is {share:g}.", fix)])
        return reading

    def settings(self) -> dict[str, Any]:
        """Return what the result depends on, beside the contents of the files."""
        evaluation_file = self.options.decontaminate
        return {
            "files": [_absolute(file) for file in self.files],
            **asdict(self.options),
            "decontaminate": evaluation_file and _absolute(evaluation_file),
            "validation_ratio": self.validation_ratio,
            "seed": self.seed,
            "max_rejected_share": self.max_rejected_share,
        }

    def sources(self) -> list[dict[str, Any]]:
        """Return what identifies the present version of each file."""
        beside = [self.options.decontaminate] if self.options.decontaminate else []
        return [_version(file, self.options.revision) for file in (*self.files, *beside)]

    def is_done(self, store: Store, sources: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether this was read before, from the same files.

        Raises RunFolderError when it was read with other settings and is not to be overwritten.
        """
        if store.check("read", self.settings(), overwrite=self.overwrite) != "done":
            return False
        before = store.report("read")["sources"]
        same = len(sources) == len(before) and all(
            # Where the Hub cannot be reached, what was read of it stands.
            was.get(key) == value
            for was, now in zip(before, sources, strict=True)
            for key, value in now.items()
            if key != "commit" or value
        )
        return same and (self.out / REJECTS).is_file()

    @contextmanager
    def tallied(
        self, recording: Recording, sources: Sequence[Mapping[str, Any]]
    ) -> Iterator[Tally]:
        """Give the tally of the rows; in the end, write what it counted into the recording.

        Raises DataError when too many rows were rejected.
        """
        began = time.monotonic()
        if self.options.decontaminate:
            evaluation_set.cache_clear()
            evaluation_set(self.options.decontaminate)  # a fault in it is reported at once
        tally = Tally(self.options, self.seed, self.out, self.files)
        yield tally
        tally.refuse_if_more(self.max_rejected_share)
        recording.result.update(tally.report(self.validation_ratio))
        if self.options.decontaminate:
            recording.result["decontaminated"] = evaluation_set(self.options.decontaminate).report()
        recording.result["content"] = tally.content
        recording.notes["sources"] = sources
        recording.notes["seconds"] = round(time.monotonic() - began, 3)


def read(reading: Reading, workers: int | None = None) -> Mapping[str, Any]:
    """Read files into the store of a reading, and return the report.

    What was read with the same settings from the same files is not read again. `workers` (None: one
    for each core) changes nothing of what is written. Raises DataError when too many rows are
    rejected (rejects.refused.jsonl has them), and RunFolderError when the folder holds other files.
    """
    sources, store = reading.sources(), Store.make(reading.out)
    if reading.is_done(store, sources) and has_traces(store):
        return {**store.report("read"), "done_before": True}
    with (
        store.recording("read", reading.settings(), replaces=True) as recording,
        replaced(reading.out, TRACES, REJECTS) as (traces, rejects),
        reading.tallied(recording, sources) as tally,
    ):
        for rows in _rows(reading, workers):
            for row in rows:
                if row is None:
                    tally.noted["blank_lines"] += 1
                elif isinstance(counted := tally.add(row), Read):
                    traces.write(counted.line)
                else:
                    write_reject(rejects, counted)
        recording.notes["bytes"] = traces.tell()
    return store.report("read")


def has_traces(store: Store) -> bool:
    """Return whether the traces that were read are there."""
    path = store.folder / TRACES
    return path.is_file() and path.stat().st_size == store.report("read").get("bytes")


def _rows(reading: Reading, workers: int | None) -> Iterator[Sequence[Read | Rejected | None]]:
    """Yield what the rows are, in order. Files that can be read from the middle go to workers."""
    options = reading.options
    with bars() as progress:
        task = progress.add_task("read", total=total_bytes(reading.files) or None)
        for seekable, files in groupby(reading.files, is_seekable):
            if seekable:
                blocks = chain.from_iterable(map(blocks_of, files))
                for rows, size in in_order(partial(_read_block, options=options), blocks,
                                           workers=workers):  # fmt: skip
                    yield rows
                    progress.advance(task, size)
                continue
            for file in files:
                for _, where, item in rows_in(Block(file, 0, 0, 1), options):
                    yield [read_item(where, item, options)]
                progress.advance(task, total_bytes([file]))


def total_bytes(files: Sequence[str]) -> int:
    """Return the size of the files that are on this machine."""
    return sum(os.path.getsize(file) for file in files if os.path.exists(file))


def _read_block(block: Block, options: Options) -> tuple[list[Read | Rejected | None], int]:
    """Return what the rows of a block are, without the typed traces; a worker's part of `read`."""
    rows = [read_item(where, item, options) for _, where, item in rows_in(block, options)]
    for row in rows:
        if isinstance(row, Read):
            row.trace = None
    return rows, block.size


def read_item(where: str, item: Item, options: Options) -> Read | Rejected | None:
    """Return what a row of `rows_in` is; None for a blank line."""
    if item == b"":
        return None
    if isinstance(item, Rejected):
        return item
    if isinstance(item, bytes):
        return read_line(item, where, options)
    return read_values(item, where, options)


def write_reject(file: IO[bytes], row: Rejected) -> None:
    """Write a line of rejects.jsonl."""
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    file.write(msgspec.json.encode(values) + b"\n")


@contextmanager
def replaced(out: Path, *names: str) -> Iterator[Sequence[IO[bytes]]]:
    """Give files that replace those of these names when the block ends without an error.

    The rejects of a reading that fails are written beside those of the last one.
    """
    temporary = {name: out / f".{name}.{uuid.uuid4().hex}.tmp" for name in names}
    try:
        with ExitStack() as closing:
            files = [closing.enter_context(path.open("wb")) for path in temporary.values()]
            try:
                yield files
            except DataError:
                files[-1].flush()
                os.replace(temporary[REJECTS], out / REFUSED)
                raise
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for name, path in temporary.items():
            os.replace(path, out / name)
        (out / REFUSED).unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{out} cannot be written: {error.strerror or error}. Free space, or choose another "
            "--out; what was there is unchanged."
        ) from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


def _absolute(file: str) -> str:
    return os.path.abspath(file) if os.path.exists(file) else file


def _version(file: str, revision: str | None) -> dict[str, Any]:
    if not os.path.exists(file):
        return {"path": file, "commit": dataset_commit(file, revision)}
    stat = os.stat(file)
    return {"path": os.path.abspath(file), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
