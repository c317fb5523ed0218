"""Lines of a plain or gzip text file as bytes, each with its number."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from hf_rlhf.errors import DataError

_BOM = b"\xef\xbb\xbf"
_GZIP_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile)


class Line(NamedTuple):
    """A line of a file, with its line end."""

    number: int
    """From 1."""
    content: bytes


def suffix_of(path: Path) -> str:
    """Return a file's suffix in lower case, without `.gz`."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def has_json_lines(path: Path) -> bool:
    """Return whether a file holds JSON Lines, which many tools write into .json files."""
    if suffix_of(path) != ".json":
        return suffix_of(path) in (".jsonl", ".ndjson")
    try:
        with _open(path) as file:
            begin = file.read(1_000_000) + file.readline() + file.read(1_000)
    except _GZIP_ERRORS:
        return False
    line, _, rest = begin.removeprefix(_BOM).lstrip().partition(b"\n")
    return line[:1] == b"{" and line.rstrip()[-1:] == b"}" and rest.lstrip()[:1] == b"{"


def read_lines(
    path: Path, *, start: int = 0, size: int | None = None, number: int = 1
) -> Iterator[Line]:
    """Yield the lines of a file, including blank ones, without a byte order mark.

    Args:
        path: of the file; uncompressed with `start` and `size`.
        start: offset of the first line in bytes.
        size: bytes to read; by default to the end.
        number: of the first line.

    Raises:
        DataError: UTF-16, or damaged gzip data.
        OSError: the file cannot be read.
    """
    try:
        with _open(path) as file:
            file.seek(start)
            end = None if size is None else start + size
            while (end is None or start < end) and (content := file.readline()):
                start += len(content)
                if number == 1 and content[:2] in (b"\xff\xfe", b"\xfe\xff"):
                    raise DataError(
                        f"{path}:1: is UTF-16. Convert it: iconv -f UTF-16 -t utf-8 FILE."
                    )
                yield Line(number, content.removeprefix(_BOM) if number == 1 else content)
                number += 1
    except _GZIP_ERRORS as error:
        raise DataError(
            f"{path}:{number}: the gzip data breaks off or is damaged ({error}). Get the file "
            "again."
        ) from error


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    is_packed = path.name.lower().endswith(".gz")
    return gzip.open(path) if is_packed else path.open("rb", buffering=1 << 18)
