"""Blocks of complete lines of files of any size, for independent reading by processes."""

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hf_rlhf.errors import DataError

BLOCK = 8 << 20
"""Minimum bytes of a block, which ends with the next line end."""


class Block(Struct, frozen=True, gc=False):
    """Complete lines of a file: where they start, and their size, in bytes."""

    path: str
    start: int
    size: int
    line: int
    """Number of the first line, from 1."""


def blocks(path: Path, size: int | None = None) -> Iterator[Block]:
    """Yield the blocks of a file; an empty file has none. Raises DataError if it cannot be read.

    A block is larger than `size` bytes (`BLOCK`) by at most the line at its end.
    """
    try:
        with path.open("rb") as file:
            start, line = 0, 1
            while piece := file.read(size or BLOCK):
                count, lines = len(piece), piece.count(b"\n")
                # A line may be huge.
                while not piece.endswith(b"\n") and (piece := file.readline(1 << 20)):
                    count += len(piece)
                    lines += piece.endswith(b"\n")
                yield Block(str(path), start, count, line)
                start, line = start + count, line + lines
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path | str, error: OSError) -> DataError:
    """Return the error for a file that cannot be read."""
    return DataError(f"{path}: cannot be read: {error.strerror or error}.")


def cores() -> int:
    """Return the number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
