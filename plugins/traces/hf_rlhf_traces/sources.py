"""Files and folders to rows with their places, a row in memory at a time.

A line of JSON Lines that is corrupt, cut off or too long is a rejection with its number, and the
next one is read. Other files (a JSON array, Parquet, CSV) cannot be read on behind
a fault: what is left of them is one rejection that says so.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hf_rlhf.data import FOREIGN, READERS, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_traces.blocks import Block, blocks, unreadable
from hf_rlhf_traces.reading import Options, Rejected, rejected

Item = bytes | Mapping[str, Any] | Rejected
"""A line, a parsed row, or why there is none."""
_LINES = (".jsonl", ".ndjson")
_PIECE = 1 << 20


def files_of(sources: Sequence[str], out: Path, options: Options) -> list[str]:
    """Return the files to read, in order: a folder's are those with a known suffix, by name.

    What is no path stays as it is, for the Hub. Raises DataError where nothing is to be read, and
    where the next reading would read what this one writes to `out`.
    """
    files: list[str] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir():
            if out.resolve().is_relative_to(path.resolve()):
                raise DataError(f"{source}: --out {out} lies in it. Choose a folder elsewhere.")
            inside = [file for file in sorted(path.rglob("*")) if _readable(file, path)]
            if not inside:
                raise DataError(
                    f"{source}: this folder holds no data files ({', '.join(READERS)})."
                )
            files += map(str, inside)
        elif path.exists() and _suffix(path) not in READERS:
            raise DataError(
                f"{source}: {_suffix(path) or 'a name without suffix'} is not read here. Expected "
                f"one of {', '.join(READERS)}; all but Parquet may be gzipped (.gz)."
                f"{FOREIGN.get(_suffix(path), '')}"
            )
        elif path.exists():
            files.append(str(path))
        else:
            # No file: a dataset of the Hub, or an error with near names.
            read_rows(source, revision=options.revision, subset=options.subset)
            files.append(source)
    _check(files, options)
    return files


def _check(files: Sequence[str], options: Options) -> None:
    local = [file for file in files if Path(file).exists()]
    if local and (options.subset or options.revision):
        raise DataError(
            f"{local[0]}: --subset and --revision are for datasets on the Hub, and this is a local "
            "file. Leave them out."
        )
    if twice := sorted({file for file in files if files.count(file) > 1}):
        raise DataError(f"{', '.join(twice)}: given twice. Name each file once.")
    for file in files:
        if not file.isprintable():  # it could not be written to the manifest, nor be seen
            raise DataError(f"{file!r}: the name has characters that cannot be shown. Rename it.")


def _readable(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    return not hidden and _suffix(file) in READERS and file.is_file()


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def blocks_of(file: str, size: int | None = None) -> Iterator[Block]:
    """Yield the blocks of one of `files_of`: one of size 0 for a file without lines to seek to."""
    if is_seekable(file):
        yield from blocks(Path(file), size)
    else:
        yield Block(file, 0, 0, 1)


def is_seekable(file: str) -> bool:
    """Return whether a file can be read from the middle: JSON Lines that are not compressed."""
    path = Path(file)
    return path.suffix.lower() != ".gz" and path.is_file() and _holds_lines(path)


def rows_in(block: Block, options: Options) -> Iterator[tuple[Block, str, Item]]:
    """Yield the rows of a block: where to seek to for the row, its place for messages, its content.

    A blank line is b"". Where a file cannot be read from the middle, the block is `block`. Raises
    DataError for a source that cannot be opened.
    """
    max_bytes = int(options.max_row_mb * 1e6)
    try:
        if block.size:
            with Path(block.path).open("rb", buffering=_PIECE) as file:
                file.seek(block.start)
                for line, item in _lines(file, block, max_bytes):
                    yield line, line.where, item
        else:
            for where, item in _whole_file(block.path, options, max_bytes):
                yield block, where, item
    except OSError as error:
        raise unreadable(block.path, error) from error


def _whole_file(file: str, options: Options, max_bytes: int) -> Iterator[tuple[str, Item]]:
    path = Path(file)
    if not path.exists():
        source = read_rows(file, revision=options.revision, subset=options.subset)
        for rows in source.splits.values():
            yield from ((row.where, row.values) for row in rows)
    elif _holds_lines(path):
        with _binary(path) as opened:
            for line, item in _lines(opened, Block(file, 0, 0, 1), max_bytes):
                yield line.where, item
    elif _suffix(path) == ".json" and _begin(path)[:1] == b"{":
        yield f"{path}:1", _one_object(path, max_bytes)
    else:
        yield from _parsed(path)


def _holds_lines(path: Path) -> bool:
    return _suffix(path) in _LINES or (_suffix(path) == ".json" and _is_lines(path))


def _is_lines(path: Path) -> bool:
    """Many tools write JSON Lines into files called .json; others one object, over many lines."""
    begin = _begin(path)
    line, ended, _ = begin.partition(b"\n")
    return line[:1] == b"{" and (not ended or line.rstrip()[-1:] == b"}")


def _begin(path: Path) -> bytes:
    with _binary(path) as file:
        try:
            return file.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip()
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return b""


def _one_object(path: Path, max_bytes: int) -> bytes | Rejected:
    """Return the one object that a file is."""
    try:
        with _binary(path) as file:
            content = file.read(max_bytes + 1).removeprefix(b"\xef\xbb\xbf")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        return rejected(f"{path}:1", "file_damaged", f"the gzip data is damaged ({error})")
    if len(content) > max_bytes:
        detail = f"the file is one row of more than --max_row_mb {max_bytes / 1e6:g}"
        return rejected(f"{path}:1", "too_large", detail, content[:_PIECE])
    return content


def _binary(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")


def _lines(
    file: IO[bytes] | gzip.GzipFile, block: Block, max_bytes: int
) -> Iterator[tuple[Block, Item]]:
    """Yield the lines from where a file stands to the end of the block, each as its own block."""
    line = Block(block.path, block.start, 0, block.line)
    item: Item
    end = block.start + block.size if block.size else None
    try:
        while (end is None or line.start < end) and (content := file.readline(max_bytes + 1)):
            if len(content) > max_bytes and not content.endswith(b"\n"):
                size, item = _too_large(file, content, line.where, max_bytes)
            elif line.line == 1:
                size, item = len(content), _first(content, line.where)
            else:
                size, item = len(content), b"" if content.isspace() else content
            yield Block(block.path, line.start, size, line.line), item
            line = Block(block.path, line.start + size, 0, line.line + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        detail = f"the gzip data breaks off or is damaged ({error}); what follows is lost"
        yield line, rejected(line.where, "file_damaged", detail)


def _first(line: bytes, where: str) -> bytes:
    if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{where}: is UTF-16. Convert it: iconv -f UTF-16 -t utf-8 FILE.")
    line = line.removeprefix(b"\xef\xbb\xbf")
    if line.split(b"{")[0].strip() == b"[":
        raise DataError(
            f"{where}: holds a JSON array, but this suffix means one object per line. Rename "
            "it to end in .json."
        )
    return line if line.strip() else b""


def _too_large(
    file: IO[bytes] | gzip.GzipFile, line: bytes, where: str, max_bytes: int
) -> tuple[int, Rejected]:
    size = len(line)
    begin = line[:_PIECE]
    del line
    while piece := file.readline(_PIECE):
        size += len(piece)
        if piece.endswith(b"\n"):
            break
    detail = f"{size / 1e6:.1f} MB, more than --max_row_mb {max_bytes / 1e6:g}"
    return size, rejected(where, "too_large", detail, begin)


def _parsed(path: Path) -> Iterator[tuple[str, Item]]:
    number = 0
    try:
        for where, values in READERS[_suffix(path)](path):
            number += 1
            if isinstance(values, DataError):
                yield where, rejected(where, "malformed", str(values))
            else:
                yield where, values
    except DataError as error:
        where = f"{path}, row {number + 1}"
        yield where, rejected(where, "file_damaged", f"{error} What follows is lost")
