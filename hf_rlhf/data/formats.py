"""Read a file as pairs (position, fields): streamed, except .json files that are no JSON Lines.

Every error is a `DataError` that begins with file and line (or row). An error of a single row is
yielded instead of its fields; other errors are raised. pyarrow is imported when needed.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.lines import has_json_lines, read_lines
from hf_rlhf.errors import DataError

LONGEST_CSV_FIELD = 1 << 28
"""Characters. Python's own limit of 131,072 is less than one page of tool output."""

LocatedRow = tuple[str, dict[str, Any] | DataError]
"""The location for error messages (`rows.jsonl:12`), and the row's fields, or its fault."""


class _Decoder(json.JSONDecoder):
    """Detects duplicate keys of an object: `json` silently drops all values but the last."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object)
        self.repeated: str | None = None
        self.near = ""
        """The beginning of the object with the duplicate key."""

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            self.repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
            self.near = f"{pairs!s:.80}"
        return values


def repeated_key(text: str) -> str | None:
    """Return a duplicate key of an object in a JSON text, or None."""
    decoder = _Decoder()
    decoder.decode(text)
    return decoder.repeated


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: is not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start + 1} of "
            "the line. Convert it: iconv -f ENCODING -t utf-8 FILE."
        ) from error


def _json_lines(path: Path) -> Iterator[LocatedRow]:
    for line in read_lines(path):
        if not line.content.strip():
            continue
        where = f"{path}:{line.number}"
        try:
            text = _decode(line.content, where)
            yield where, _as_row(_parse(text, path, line.number), where, "\\ud" in text.lower())
        except DataError as error:
            yield where, error


def _parse(text: str, path: Path, line: int) -> Any:
    """Return the value of a JSON text that begins at a line of a file. Raises DataError."""
    decoder = _Decoder()
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        cut = "" if text.endswith("\n") else " The last line has no end: was the file cut off?"
        where = f"{path}:{line - 1 + error.lineno}"
        raise DataError(f"{where}: is not valid JSON: {problem}.{cut} Correct it.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: is not usable JSON: {error}.") from error
    if decoder.repeated is not None:
        raise DataError(
            f"{path}:{line}: the key {decoder.repeated!r} occurs twice in one object, and only one "
            f"of the values could be read: {decoder.near}. Remove one of them."
        )
    return value


def _as_row(value: Any, where: str, escapes: bool) -> dict[str, Any]:
    """Return an object. Raises DataError, also for lone surrogates, which are escapes in JSON."""
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: is {type(value).__name__}, expected a JSON object with one key per column. "
            "An array of objects is read from a .json file, JSON Lines from a .jsonl file."
        )
    try:
        if escapes:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: holds half of a surrogate pair (such as \\ud83d alone), which is no "
            "character: some text was cut inside an emoji. Remove it."
        ) from error
    return value


def _json(path: Path) -> Iterator[LocatedRow]:
    if has_json_lines(path):
        yield from _json_lines(path)
        return
    text = "".join(_decode(line.content, f"{path}:{line.number}") for line in read_lines(path))
    value, escapes = _parse(text, path, 1), "\\ud" in text.lower()
    if not isinstance(value, list):
        yield f"{path}:1", _as_row(value, f"{path}:1", escapes)
        return
    for number, element in enumerate(value, 1):
        where = f"{path}, row {number}"
        try:
            yield where, _as_row(element, where, escapes)
        except DataError as error:
            yield where, error


def _delimited(path: Path, delimiter: str) -> Iterator[LocatedRow]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CSV_FIELD))
    lines = (_decode(line.content, f"{path}:{line.number}") for line in read_lines(path))
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        names = reader.fieldnames or []
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(
                f"{path}:1: the header names {', '.join(twice)} twice. Rename one of the columns."
            )
        start = reader.line_num + 1
        for values in reader:
            where = f"{path}:{start}"
            start = reader.line_num + 1
            fits = None not in values and None not in values.values()
            yield (
                where,
                values
                if fits
                else DataError(
                    f"{where}: has fewer or more fields than the header, which names "
                    f"{', '.join(names)}. Quote fields that hold the separator or a line break."
                ),
            )
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: is not valid CSV: {error}. A quote may be open, or the file cut off."
        ) from error


def _parquet(path: Path) -> Iterator[LocatedRow]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for values in arrow_rows(batch):
                    number += 1
                    yield f"{path}, row {number}", values
    except (pyarrow.ArrowException, OSError, KeyError) as error:  # KeyError: of a map
        raise DataError(
            f"{path}, row {number + 1} or after it: is not readable Parquet: {error}"
        ) from error


READERS: Mapping[str, Callable[[Path], Iterator[LocatedRow]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": lambda path: _delimited(path, ","),
    ".tsv": lambda path: _delimited(path, "\t"),
}
"""Suffix -> reader of such a file."""
