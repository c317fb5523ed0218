"""Every row of some files, in order: read, counted, and written to its place."""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import IO, Any

import orjson
from msgspec.structs import replace

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf_traces.bulk import Bulk
from hf_rlhf_traces.engine import Block, blocks
from hf_rlhf_traces.reading import Options, Read, Rejected, read_line, read_values
from hf_rlhf_traces.sources import Item, in_blocks, lines_of, rows_of
from hf_rlhf_traces.store import REFUSED, REJECTS, TRACES
from hf_rlhf_traces.tally import Tally

EARLY = 1_000
"""Rows after which a file without a single trace is given up."""


class Found(list[Read | Rejected | None]):
    """What came of the rows of a block, or of one row; None of a blank line."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Send what is read of all rows as one piece."""
        bodies = [one.body for one in self if isinstance(one, Read)]
        return _received, (list(self), [*map(len, bodies)], Bulk(b"".join(bodies)))


def _received(rows: list[Read | Rejected | None], sizes: list[int], bodies: Bulk) -> Found:
    content, ends = bodies.content, accumulate(sizes)
    places = (slice(end - size, end) for size, end in zip(sizes, ends, strict=True))
    return Found(
        replace(one, body=content[next(places)]) if isinstance(one, Read) else one for one in rows
    )


EachFound = Callable[[Callable[[Block], Found], Iterable[Block]], Iterator[Found]]
"""How blocks are read, in order: as `hf_rlhf_traces.engine.Each`."""
Settled = Callable[[Found, Sequence[Read | Rejected]], None]
"""Told what came of rows, and what became of those that are not blank when they were counted."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where rows are written."""

    traces: IO[bytes]
    rejects: IO[bytes]


def gather(
    files: Sequence[str],
    tally: Tally,
    places: Places,
    each: EachFound,
    settled: Settled | None = None,
) -> None:
    """Read files, count each row, and write it to its place."""
    with _progress(files) as tick:
        for found in _found(files, tally.options, tick, each):
            counted: list[Read | Rejected] = []
            for one in found:
                if one is None:
                    continue
                counted.append(tally.add(one))
                if tally.rows == EARLY == tally.bad:
                    tally.refuse_if_more(0)
            tally.noted["blank_lines"] += len(found) - len(counted)
            for one in counted:
                if isinstance(one, Read):
                    places.traces.write(one.line)
                else:
                    places.rejects.write(orjson.dumps(asdict(one)) + b"\n")
            if settled is not None:
                settled(found, counted)


def _found(
    files: Sequence[str],
    options: Options,
    tick: Callable[[str], Callable[[int], None]],
    each: EachFound,
) -> Iterator[Found]:
    """Yield what came of rows, in order. Workers read what can be parted.

    Files in a row that can be, are one stream of blocks: many small ones keep workers busy, too.
    """
    for parted, some in groupby(files, in_blocks):
        if parted:
            coming = chain.from_iterable(_blocks(file, tick(file)) for file in some)
            yield from each(partial(read_block, options=options), coming)
        else:
            for file in some:
                for where, item in rows_of(file, options, tick(file)):
                    yield Found([read_item(where, item, options)])


def _blocks(file: str, tick: Callable[[int], None]) -> Iterator[Block]:
    for block in blocks(Path(file)):
        yield block
        tick(block.start + block.size)


def read_block(block: Block, options: Options) -> Found:
    """Return what came of each row of a block; a worker's part of `read`."""
    rows = lines_of(block, int(options.max_row_mb * 1e6))
    return Found([read_item(where, item, options) for where, item in rows])


def read_item(where: str, item: Item, options: Options) -> Read | Rejected | None:
    """Return what came of a row of `rows_of`; None of a blank line."""
    if item == b"":
        return None
    if isinstance(item, Rejected):
        return item
    if isinstance(item, bytes):
        return read_line(item, where, options)
    return read_values(item, where, options)


@contextmanager
def written(out: Path) -> Iterator[Places]:
    """Give both files; they take their places when all is read.

    Rejects of a reading that fails are put beside those there are.
    """
    temporary = {name: out / f".{name}.{uuid.uuid4().hex}.tmp" for name in (TRACES, REJECTS)}
    try:
        with temporary[TRACES].open("wb") as traces, temporary[REJECTS].open("wb") as rejects:
            try:
                yield Places(traces, rejects)
            except DataError:
                rejects.flush()
                os.replace(temporary[REJECTS], out / REFUSED)
                raise
            for file in (traces, rejects):
                file.flush()
                os.fsync(file.fileno())
        for name, path in temporary.items():
            os.replace(path, out / name)
        (out / REFUSED).unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{out} cannot be written: {error.strerror or error}. Free space, or choose another "
            "--out; what was there stands."
        ) from error
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)


@contextmanager
def _progress(files: Sequence[str]) -> Iterator[Callable[[str], Callable[[int], None]]]:
    """Show how much of all files is read; `tick(file)(bytes)` says where one stands."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    sizes = {file: os.path.getsize(file) if os.path.exists(file) else 0 for file in files}
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("reading", total=sum(sizes.values()) or None)
        done = dict.fromkeys(files, 0)
        shown = time.monotonic()

        def tick(file: str) -> Callable[[int], None]:
            def at(count: int) -> None:
                nonlocal shown
                done[file] = count
                if time.monotonic() - shown > 0.2 or count == sizes[file]:
                    shown = time.monotonic()
                    progress.update(task, completed=sum(done.values()))

            return at

        yield tick
