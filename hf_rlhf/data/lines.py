"""Lines of a plain or gzip text file as bytes, each with its number and byte offset."""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from hf_rlhf.errors import DataError

PIECE = 1 << 20
"""Bytes or characters that are read at a time."""
BOM = b"\xef\xbb\xbf"
GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)
_BUFFER = 1 << 18


class Line(NamedTuple):
    """A line of a file."""

    number: int
    """From 1."""
    start: int
    """Its offset in the file, in (decompressed) bytes."""
    size: int
    """In bytes, with its line end."""
    content: bytes
    """With its line end; for a line that is too long, the first `PIECE` bytes."""
    is_cut: bool = False
    """Whether the line is longer than allowed."""


def suffix_of(path: Path) -> str:
    """Return a file's suffix in lower case, without `.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def has_json_lines(path: Path) -> bool:
    """Return whether a file holds JSON Lines, which many tools write into .json files."""
    if suffix_of(path) != ".json":
        return suffix_of(path) in (".jsonl", ".ndjson")
    try:
        with open_binary(path) as file:
            begin = file.read(PIECE).removeprefix(BOM).lstrip()
    except GZIP_ERRORS:
        return False
    line, _, rest = begin.partition(b"\n")
    return line[:1] == b"{" and line.rstrip()[-1:] == b"}" and rest.lstrip()[:1] == b"{"


def read_lines(
    path: Path,
    *,
    start: int = 0,
    size: int | None = None,
    number: int = 1,
    max_bytes: int | None = None,
) -> Iterator[Line]:
    """Yield the lines of a file, including blank ones, without a byte order mark.

    Args:
        path: of the file; uncompressed with `start` and `size`.
        start: offset of the first line in bytes.
        size: bytes to read; by default to the end.
        number: of the first line.
        max_bytes: longer lines are cut to their first `PIECE` bytes, and never held in memory.

    Raises:
        DataError: UTF-16, damaged gzip data, or JSON that is not one value per line.
        OSError: the file cannot be read.
    """
    end = None if size is None else start + size
    limit = -1 if max_bytes is None else max_bytes + 1
    try:
        with open_binary(path) as file:
            file.seek(start)
            while (end is None or start < end) and (content := file.readline(limit)):
                cut = len(content) == limit and not content.endswith(b"\n")
                length = len(content) + (sum(map(len, _rest_of_line(file))) if cut else 0)
                if number == 1:
                    content = content.removeprefix(BOM)
                    _refuse_other_form(content, path)
                yield Line(number, start, length, content[:PIECE] if cut else content, cut)
                number, start = number + 1, start + length
    except GZIP_ERRORS as error:
        raise damaged_gzip(path, number, error) from error


def open_binary(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Open a file for reading, decompressed if its name ends with `.gz`."""
    is_packed = path.name.lower().endswith(".gz")
    return gzip.open(path) if is_packed else path.open("rb", buffering=_BUFFER)


def damaged_gzip(path: Path, number: int, error: Exception) -> DataError:
    """Return the error for damaged or truncated gzip data at a line."""
    return DataError(
        f"{path}:{number}: the gzip data breaks off or is damaged ({error}). Get the file again."
    )


def _rest_of_line(file: IO[bytes] | gzip.GzipFile) -> Iterator[bytes]:
    while piece := file.readline(PIECE):
        yield piece
        if piece.endswith(b"\n"):
            return


def refuse_utf16(begin: bytes, path: Path) -> None:
    """Raise DataError if a file begins with the byte order mark of UTF-16."""
    if begin[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}:1: is UTF-16. Convert it: iconv -f UTF-16 -t utf-8 FILE.")


def _refuse_other_form(line: bytes, path: Path) -> None:
    """Raise DataError if a file's first line is not a complete JSON value."""
    refuse_utf16(line, path)
    if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
        raise DataError(
            f"{path}:1: its lines end with a carriage return alone, as on an old Mac. Convert it: "
            "tr '\\r' '\\n' < FILE > NEW_FILE."
        )
    if suffix_of(path) not in (".jsonl", ".ndjson"):
        return
    if line.split(b"{")[0].strip() == b"[":
        form = "a JSON array"
    elif line.strip() == b"{":
        form = "an object that spans many lines"
    else:
        return
    name = re.sub(r"\.(jsonl|ndjson)(?=(\.gz)?$)", ".json", path.name, flags=re.IGNORECASE)
    raise DataError(
        f"{path}:1: holds {form}, but a file with this suffix has one object per line. Rename it "
        f"to {name}."
    )
