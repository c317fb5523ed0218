"""Blocks of complete lines of files of any size, and worker processes that yield in order.

Where a block ends depends on the file alone, so results depend neither on the number of workers nor
on their machine. Memory holds a few blocks for each worker.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TypeVar

from msgspec import Struct

from hf_rlhf.errors import DataError
from hf_rlhf_traces.options import whole_number

T = TypeVar("T")
R = TypeVar("R")
BLOCK = 8 << 20
"""Bytes after which a block ends, at the end of the line it is in."""
_GARBAGE_THRESHOLD = 200_000
_AHEAD = 2
"""Tasks that are submitted beyond one for each worker."""


class Block(Struct, frozen=True, gc=False):
    """Complete lines of a file: where they start, and their size, in bytes."""

    path: str
    start: int
    size: int
    line: int
    """The number of the first line, from 1."""

    @property
    def where(self) -> str:
        """The file and first line, for messages: `raw.jsonl:12`."""
        return f"{self.path}:{self.line}"


def blocks(path: Path, size: int | None = None) -> Iterator[Block]:
    """Yield the blocks of a file; an empty file has none. Raises DataError if it cannot be read.

    A block is larger than `size` bytes (`BLOCK`) by no more than the line in which it ends.
    """
    buffer = bytearray(size or BLOCK)
    try:
        with path.open("rb") as file:
            start, line = 0, 1
            while count := file.readinto(buffer):
                lines = _line_ends(buffer, count)
                if buffer[count - 1] != 0x0A:
                    count += sum(map(len, _rest_of_line(file)))
                    lines += 1
                yield Block(str(path), start, count, line)
                start, line = start + count, line + lines
    except OSError as error:
        raise unreadable(path, error) from error


def _line_ends(buffer: bytearray, size: int) -> int:
    # For long lines, `find` takes a tenth of the time of `count`.
    lines, at = 0, buffer.find(b"\n", 0, size)
    while at >= 0:
        lines, at = lines + 1, buffer.find(b"\n", at + 1, size)
    return lines


def _rest_of_line(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a line in pieces: it may be larger than memory."""
    while piece := file.readline(1 << 20):
        yield piece
        if piece.endswith(b"\n"):
            return


def unreadable(path: Path | str, error: OSError) -> DataError:
    """Return the error for a file that cannot be read."""
    return DataError(f"{path}: cannot be read: {error.strerror or error}.")


def in_order(
    work: Callable[[T], R], tasks: Iterable[T], *, workers: int | None = None
) -> Iterator[R]:
    """Yield `work(task)` for each task, in the order of the tasks.

    Args:
        work: a pure function that can be pickled.
        tasks: taken a few ahead of the results, so that memory stays flat.
        workers: processes; None is one for each core this process may use. With 0 or 1, and with
            one task only, this process does the work.

    An error of `work` is raised at the position of its result. Raises DataError when a worker is
    killed. However this ends, no worker is left.
    """
    upcoming = iter(tasks)
    first = list(islice(upcoming, 2))
    count = cores() if workers is None else workers
    if count < 2 or len(first) < 2:
        with _rare_garbage_collection():
            yield from map(work, chain(first, upcoming))
        return
    with _pool(count) as pool:
        waiting: deque[Future[R]] = deque()
        for task in chain(first, upcoming):
            waiting.append(pool.submit(work, task))
            if len(waiting) >= count + _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Look for cycles rarely: rows have none, and looking takes up to a third of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool whose workers end at once when the block fails or this process ends."""
    context = multiprocessing.get_context("spawn")
    lifeline, parent_end = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(count, context, _start_worker, (lifeline,))
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool as error:
        raise DataError(
            f"one of {count} worker processes ended unexpectedly; most often the system killed it "
            "because memory ran out. Use fewer: --workers 1 works in this process alone. (A script "
            "that starts workers must be a file that is guarded by `if __name__ == '__main__'`.)"
        ) from error
    finally:
        parent_end.close()
        pool.shutdown(cancel_futures=True)
        lifeline.close()


def _start_worker(lifeline: Connection) -> None:
    """Leave Ctrl-C to the parent process, and end when it closes its end of the lifeline."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(_GARBAGE_THRESHOLD)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()


def _end_with_parent(lifeline: Connection) -> None:
    lifeline.poll(None)
    os._exit(1)


def add_workers_option(parser: argparse.ArgumentParser) -> None:
    """Add `--workers`."""
    parser.add_argument(
        "--workers",
        type=whole_number(0),
        metavar="N",
        help="processes; default: one for each core. The output does not depend on it",
    )


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
