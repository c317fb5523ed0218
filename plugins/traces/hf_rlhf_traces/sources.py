"""Read files, folders and Hub datasets as rows with their places, a row in memory at a time.

A corrupt, truncated or oversized line of JSON Lines is rejected with its number, and reading
continues. Other files (a JSON array, Parquet, CSV) cannot be read beyond a fault: the rest of the
file is a single rejection.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_rlhf.data import Source, data_files, has_json_lines, read_lines, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_traces.blocks import Block, blocks, unreadable
from hf_rlhf_traces.reading import Options, RawRow, rejected


def files_of(sources: Sequence[str], out: Path, options: Options) -> list[str]:
    """Return the files to read, in order: from a folder, files with a known suffix, by name.

    Other names stay as they are, for the Hub. Raises DataError if there is nothing to read, or if
    the next reading would read the output in `out`.
    """
    files: list[str] = []
    for source in sources:
        path = Path(source).expanduser()
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise DataError(f"{source}: --out {out} lies in it. Choose a folder elsewhere.")
        if path.exists():
            files += map(str, data_files(path))
        else:
            # No file: a dataset of the Hub, or an error with similar names.
            hub_source(source, options)
            files.append(source)
    if (options.subset or options.revision) and any(map(os.path.exists, files)):
        raise DataError(
            f"{files[0]}: --subset and --revision are for datasets on the Hub, and this is a local "
            "file. Leave them out."
        )
    return files


def hub_source(name: str, options: Options) -> Source:
    """Return a dataset of the Hub. Raises DataError if it does not exist."""
    return read_rows(name, revision=options.revision, subset=options.subset)


def blocks_of(file: str) -> Iterator[Block]:
    """Yield the blocks of a file from `files_of`; a single block of size 0 if it has no lines."""
    path = Path(file)
    if path.suffix.lower() != ".gz" and path.is_file() and has_json_lines(path):
        yield from blocks(path)
    else:
        yield Block(file, 0, 0, 1)


def rows_in(block: Block, options: Options) -> Iterator[tuple[str, RawRow]]:
    """Yield the rows of a block: the place for messages, and the content; a blank line is b"".

    Raises DataError for a source that cannot be opened.
    """
    path = Path(block.path)
    try:
        if not path.exists():
            for rows in hub_source(block.path, options).splits.values():
                yield from ((row.where, row.values) for row in rows)
        elif block.size or has_json_lines(path):
            yield from _lines(block, int(options.max_row_mb * 1e6))
        else:
            path.open("rb").close()  # a file that cannot be opened is not damaged
            yield from _parsed_rows(path)
    except OSError as error:
        raise unreadable(block.path, error) from error


def _lines(block: Block, max_bytes: int) -> Iterator[tuple[str, RawRow]]:
    number = block.line - 1
    lines = read_lines(
        Path(block.path), start=block.start, size=block.size or None, number=block.line
    )
    try:
        for number, content in lines:
            where = f"{block.path}:{number}"
            row: RawRow = b"" if content.isspace() else content
            if len(content) > max_bytes:
                detail = f"{len(content) / 1e6:.1f} MB, more than --max_row_mb {max_bytes / 1e6:g}"
                row = rejected(where, "too_large", detail, content)
            yield where, row
    except DataError as error:
        where = f"{block.path}:{number + 1}"
        yield where, rejected(where, "file_damaged", _lost(error))


def _parsed_rows(path: Path) -> Iterator[tuple[str, RawRow]]:
    count = 0
    try:
        for row in read_rows(path).split("train").open():
            count += 1
            fault = row.fault and rejected(row.where, "malformed", str(row.fault))
            yield row.where, fault or row.values
    except DataError as error:
        where = f"{path}, row {count + 1}"
        yield where, rejected(where, "file_damaged", _lost(error))


def _lost(error: DataError) -> str:
    return f"{error} What follows is lost"
