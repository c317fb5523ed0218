"""Read a file as pairs (position, fields): streamed, except JSON arrays.

Every error is a `DataError` that begins with file and line (or row). An error of a single row is
yielded instead of its fields; other errors are raised. pyarrow is imported when needed.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.lines import (
    has_json_lines,
    read_lines,
)
from hf_rlhf.errors import DataError

LONGEST_CSV_FIELD = 1 << 28
"""Characters. Python's own limit of 131,072 is less than one page of tool output."""

LocatedRow = tuple[str, dict[str, Any] | DataError]
"""The location for error messages (`rows.jsonl:12`), and the row's fields, or its fault."""

_ROWS_KEYS = ("data", "rows", "examples", "instances", "train")
_SPACE = re.compile(r"[ \t\n\r]*")
_JSON_LINES = re.compile(r"\}[ \t\r]*\n\s*\{")


class _Decoder(json.JSONDecoder):
    """Detects duplicate keys of an object: `json` silently drops all values but the last."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object)
        self.repeated: str | None = None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            self.repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return values

    def refuse_odd(self, value: Any, text: str, where: str) -> None:
        """Raise DataError for a value that no table can hold, or that is ambiguous."""
        if self.repeated is not None:
            raise DataError(
                f"{where}: the key {self.repeated!r} occurs twice in one object, and only one "
                "of the values could be read. Remove one of them."
            )
        if "\\ud" in text or "\\uD" in text:
            _refuse_lone_surrogates(value, where)


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
            yield where, _as_object(_parse(text, path, line.number), where)
        except DataError as error:
            yield where, error


def _parse(text: str, path: Path, line: int) -> Any:
    decoder = _Decoder()
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _not_json(error, path, line - 1, text) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: is not usable JSON: {error}.") from error
    decoder.refuse_odd(value, text, f"{path}:{line}")
    return value


def _not_json(error: json.JSONDecodeError, path: Path, lines: int, text: str) -> DataError:
    """Return the error for invalid JSON that begins after `lines` lines of a file."""
    problem = f"{error.msg.removesuffix(' at')} at column {error.colno}"
    cut = "" if text.endswith("\n") else " The last line has no end: was the file cut off?"
    where = f"{path}:{lines + error.lineno}"
    return DataError(f"{where}: is not valid JSON: {problem}.{cut} Correct that line.")


def _refuse_lone_surrogates(value: Any, where: str) -> None:
    """Refuse lone surrogates: legal in JSON, but not in UTF-8 files and Arrow tables."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: holds half of a surrogate pair (such as \\ud83d alone), which is no "
            "character: some text was cut inside an emoji. Remove it."
        ) from error


def _as_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: is {type(value).__name__}, expected a JSON object with one key per column."
        )
    return value


def _json(path: Path) -> Iterator[LocatedRow]:
    if has_json_lines(path):
        yield from _json_lines(path)
        return
    text = "".join(_decode(line.content, f"{path}:{line.number}") for line in read_lines(path))
    begin = text.lstrip()[:1]
    if begin == "[":
        yield from _array(text, path)
    elif begin != "{":
        raise DataError(f"{path}: begins with {begin!r}, expected an array, `[`.")
    elif next(iter(_JSON_LINES.finditer(text)), None):  # the first line is very long
        yield from _json_lines(path)
    else:
        value = _parse(text, path, 1)
        if problem := _table_in(value):
            raise DataError(f"{path}:1: {problem}")
        yield f"{path}:1", value


def _array(text: str, path: Path) -> Iterator[LocatedRow]:
    """Yield the elements of an array; an unusable element as its error."""
    at, number = text.index("["), 0
    line = 1 + text.count("\n", 0, at)
    is_empty = text.startswith("]", _after_space(text, at + 1))
    while not is_empty and text[at : at + 1] in ("[", ","):
        begin, number, decoder = _after_space(text, at + 1), number + 1, _Decoder()
        line, where = line + text.count("\n", at, begin), f"{path}, row {number}"
        try:
            value, end = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            raise _not_json(error, path, 0, text) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{line}: is not usable JSON: {error}.") from error
        try:
            decoder.refuse_odd(value, text[begin:end], f"{path}:{line}")
            yield where, _as_object(value, where)
        except DataError as error:
            yield where, error
        at = _after_space(text, end)
        line += text.count("\n", begin, at)
    end = _after_space(text, at + 1) if is_empty else at
    if not text.startswith("]", end):
        raise _not_json(json.JSONDecodeError("Expecting ',' or ']'", text, end), path, 0, text)
    if (after := _after_space(text, end + 1)) < len(text):
        raise _not_json(json.JSONDecodeError("Extra data", text, after), path, 0, text)


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]


def _table_in(value: dict[str, Any]) -> str:
    """Describe an object that contains rows; "" if it may be a row itself."""
    inner = list(value.values())
    alike = len(inner) > 1 and all(map(_is_object, inner))
    if alike and len({frozenset(fields) for fields in inner}) == 1:
        keys = ", ".join(map(repr, list(value)[:2]))
        return (
            f"holds one object of {len(inner)} objects ({keys}, …): "
            "its values look like the rows. Write them as an array, without their keys."
        )
    lists = [part for part in inner if isinstance(part, list) and not any(map(_is_object, part))]
    if len(lists) == len(inner) > 1 and len(set(map(len, lists))) == 1:
        return "holds one object of lists, a column-oriented table. Write one object per row."
    for key in _ROWS_KEYS:
        if isinstance(value.get(key), list) and all(map(_is_object, value[key])):
            return f"holds one object whose {key!r} looks like the rows. Write only that array."
    return ""


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


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
            yield where, _incomplete(values, where, names) or values
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: is not valid CSV: {error}. A quote may be open, or the file cut off."
        ) from error


def _incomplete(values: dict[Any, Any], where: str, names: Iterable[str]) -> DataError | None:
    missing = [name for name in names if values.get(name) is None]
    if not missing and None not in values:
        return None
    trouble = f"lacks {', '.join(missing)}" if missing else "has more fields than the header"
    return DataError(
        f"{where}: {trouble}; the header names {', '.join(names)}. "
        "Quote fields that hold the separator or a line break."
    )


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
    except KeyError as error:  # of a map
        raise DataError(f"{path}, row {number + 1} or after it: {error}.") from error
    except (pyarrow.ArrowException, OSError) as error:
        problem = str(error).removesuffix(".")
        raise DataError(
            f"{path}, row {number + 1}: is not readable Parquet: {problem}. Get the file again."
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
