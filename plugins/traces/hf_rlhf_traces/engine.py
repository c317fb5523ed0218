"""Files of any size through pure functions, in worker processes, in the order of the input.

A file is parted into blocks of whole lines. Where blocks end depends on the file and on `BLOCK`
alone, so that nothing that is made of them depends on how many workers there are, or on which
machine they are. Memory holds a few blocks for each worker, whatever the size of the file.
"""

import argparse
import gc
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Protocol, TypeVar

from hf_rlhf.errors import DataError
from hf_rlhf_traces.bulk import hand_over_in
from hf_rlhf_traces.options import whole

T = TypeVar("T")
R = TypeVar("R")
BLOCK = 8 << 20
"""Bytes after which a block ends, at the end of the line it is in."""
_GARBAGE = 200_000
_AHEAD = 2
"""Blocks that may be done, or be worked on, beyond one for each worker."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a file, by their place."""

    path: Path
    start: int
    size: int
    first: int
    """The number of its first line, from 1."""

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its number, as it stands. Raises DataError if it cannot be read."""
        try:
            with self.path.open("rb", buffering=1 << 20) as file:
                file.seek(self.start)
                left = self.size
                for number, line in enumerate(file, start=self.first):
                    yield number, line
                    left -= len(line)
                    if left <= 0:
                        return
        except OSError as error:
            raise unreadable(self.path, error) from error


class Each(Protocol):
    """How a function is applied to each block, in order: `in_order`, or from where it was done."""

    def __call__(self, work: Callable[[Block], R], items: Iterable[Block]) -> Iterator[R]:
        """Yield what becomes of each block."""


def blocks(path: Path, size: int = BLOCK) -> Iterator[Block]:
    """Yield the blocks of a file; none for an empty one. Raises DataError if it cannot be read.

    A block is larger than `size` by no more than the line in which it ends.
    """
    buffer = bytearray(size)
    try:
        with path.open("rb") as file:
            start, first = 0, 1
            while got := file.readinto(buffer):
                lines = _ends_in(buffer, got)
                if buffer[got - 1] != 0x0A:
                    got += sum(map(len, _rest_of_line(file)))
                    lines += 1
                yield Block(path, start, got, first)
                start, first = start + got, first + lines
    except OSError as error:
        raise unreadable(path, error) from error


def _ends_in(buffer: bytearray, size: int) -> int:
    """Return how many lines end in the first bytes: of long lines, in a tenth of `count`'s time."""
    lines, at = 0, buffer.find(b"\n", 0, size)
    while at >= 0:
        lines, at = lines + 1, buffer.find(b"\n", at + 1, size)
    return lines


def _rest_of_line(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a line piece by piece: it may be larger than memory."""
    while piece := file.readline(1 << 20):
        yield piece
        if piece.endswith(b"\n"):
            return


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file that cannot be read."""
    return DataError(f"{path}: cannot be read: {error.strerror or error}.")


def in_order(
    work: Callable[[T], R], items: Iterable[T], *, workers: int | None = None
) -> Iterator[R]:
    """Yield `work(item)` for each item, in the order of the items.

    Args:
        work: pure, and importable by its name, as is all that it holds: it is sent to processes.
        items: taken as results are, a few ahead of them: whoever is slow, memory stays flat.
        workers: processes; None is one for each core this process may use. With 0 or 1, and where
            there is one item only, this process works itself.

    What `work` raises is raised here, in the place of its result. Raises DataError when a worker
    ends without a word. However it ends, no worker is left.
    """
    coming = iter(items)
    some = list(islice(coming, 2))
    count = cores() if workers is None else workers
    with _seldom_collecting():
        if count < 2 or len(some) < 2:
            yield from map(work, chain(some, coming))
        else:
            yield from _pooled(work, chain(some, coming), count)


def _pooled(work: Callable[[T], R], items: Iterable[T], count: int) -> Iterator[R]:
    with _workers(count) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= count + _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Rows have no cycles, and to look for them takes up to a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool. Its workers end at once when the block fails, or this process ends."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    given = tempfile.TemporaryDirectory(prefix="hf_rlhf_traces-", ignore_cleanup_errors=True)
    pool = ProcessPoolExecutor(count, context, _started, (theirs, Path(given.name)))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {count} worker processes ended without a word; most often the system killed "
            "it for want of memory. Try fewer: --workers 1 works in this process alone. (A script "
            "that starts workers must be a file, and guard what it does by `__name__`.)"
        ) from error
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)
        theirs.close()
        given.cleanup()


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """Add `--workers`."""
    parser.add_argument(
        "--workers",
        type=whole(0),
        metavar="N",
        help="processes; default: one for each core. What is written does not depend on it",
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started(lifeline: Connection, folder: Path) -> None:
    """Leave Ctrl-C to the process that started this one, and end when it lets go of its end."""
    hand_over_in(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_GARBAGE)
    threading.Thread(target=_end_with, args=(lifeline, folder), daemon=True).start()


def _end_with(lifeline: Connection, folder: Path) -> None:
    lifeline.poll(None)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
