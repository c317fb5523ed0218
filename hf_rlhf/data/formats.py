"""File formats: one file to (place, fields), a piece at a time, whatever its size.

Every error is a `DataError` that begins with file and line (or row). If it concerns a single row,
it is yielded in place of that row's fields, and reading continues; others are raised. pyarrow is
imported when needed.
"""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.lines import (
    GZIP_ERRORS,
    PIECE,
    damaged_gzip,
    has_json_lines,
    open_binary,
    read_lines,
    refuse_utf16,
)
from hf_rlhf.errors import DataError

LONGEST_CSV_FIELD = 1 << 28
"""Characters. Python's own limit of 131,072 is less than one page of tool output."""

LocatedRow = tuple[str, dict[str, Any] | DataError]
"""The location for error messages (`rows.jsonl:12`), and the row's fields, or its fault."""

_ROWS_KEYS = ("data", "rows", "examples", "instances", "train")
_SPACE = re.compile(r"[ \t\n\r]*")


class _Decoder(json.JSONDecoder):
    """Remembers a key that occurs twice in one object: `json` keeps the last value only."""

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
            _refuse_half_characters(value, where)


def repeated_key(text: str) -> str | None:
    """Return a key that occurs twice in one object of a JSON text, or None."""
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
        problem = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        cut = "" if text.endswith("\n") else " The last line has no end: was the file cut off?"
        where = f"{path}:{line + error.lineno - 1}"
        raise DataError(
            f"{where}: is not valid JSON: {problem}.{cut} Correct that line."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: is not usable JSON: {error}.") from error
    decoder.refuse_odd(value, text, f"{path}:{line}")
    return value


def _refuse_half_characters(value: Any, where: str) -> None:
    """Half of a surrogate pair is legal in JSON, but no UTF-8 file or Arrow table can hold it."""
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
    window = _Window(path)
    if window.next() != "{":
        for number, value in enumerate(_elements(window), start=1):
            where = f"{path}, row {number}"
            try:
                yield where, value if isinstance(value, DataError) else _as_object(value, where)
            except DataError as error:
                yield where, error
        return
    value = window.value()
    if window.next() == "{":  # JSON Lines, of which the first is very long
        yield from _json_lines(path)
        return
    if window.next():
        raise window.fault("Extra data")
    if not isinstance(value, DataError) and (problem := _table_in(value)):
        raise DataError(f"{path}:1: {problem}")
    yield f"{path}:1", value


def _table_in(value: dict[str, Any]) -> str:
    """Describe an object that contains rows; "" for one that may be a row."""
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


def _elements(window: "_Window") -> Iterator[Any]:
    if window.next() != "[":
        raise DataError(f"{window.path}: begins with {window.next()!r}, expected an array, `[`.")
    window.take()
    if window.next() == "]":
        window.take()
    else:
        mark = ","
        while mark == ",":
            yield window.value()
            mark = window.take()
            if mark not in (",", "]"):
                raise window.fault("Expecting ',' or ']'", -len(mark), cut=not mark)
    if window.next():
        raise window.fault("Extra data")


def _text_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces of at most `PIECE` characters, though it be one line."""
    with open_binary(path) as binary:
        refuse_utf16(binary.read(2), path)
        binary.seek(0)
        with io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
            try:
                yield from iter(lambda: file.read(PIECE), "")
            except UnicodeDecodeError:
                for line in read_lines(path):  # to say where
                    _decode(line.content, f"{path}:{line.number}")
                raise


class _Window:
    """The part of a JSON text that is being parsed; what has been parsed is forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces = _text_pieces(path)
        self._text, self._at = "", 0
        self._line, self._column = 1, 0  # of the beginning of `_text`
        self._ended = False

    def next(self) -> str:
        """Return the next character that is no white space, or nothing at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self) -> str:
        """Return the same, and go past it."""
        character = self.next()
        self._at += len(character)
        return character

    def value(self) -> Any:
        """Parse the next value, which is a DataError if it alone cannot be used.

        Raise DataError, with the line, for what is none.
        """
        self.next()
        while True:
            decoder = _Decoder()
            try:
                value, end = decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # What fails far from the end of the window would fail with more text, too.
                inside = error.pos < len(self._text) - 16 and not error.msg.startswith("Untermin")
                if inside or not self._more():
                    raise self.fault(error.msg, error.pos - self._at, cut=not inside) from error
                continue
            except (ValueError, RecursionError) as error:
                raise DataError(f"{self._where(0)[0]}: is not usable JSON: {error}.") from error
            number_may_go_on = end == len(self._text) and isinstance(value, (int, float))
            if number_may_go_on and self._more():
                continue
            where, part = self._where(0)[0], self._text[self._at : end]
            self._at = end
            try:
                decoder.refuse_odd(value, part, where)
            except DataError as error:
                return error
            return value

    def fault(self, problem: str, offset: int = 0, cut: bool = False) -> DataError:
        """Return what to raise for a fault so many characters from here."""
        where, column = self._where(offset)
        hint = " The file ends before the value does: was it cut off?" if cut else ""
        problem = problem.removesuffix(" at").removesuffix(" starting")
        return DataError(
            f"{where}: is not valid JSON: {problem} at column {column}.{hint} Correct that line."
        )

    def _where(self, offset: int) -> tuple[str, int]:
        at = self._at + offset
        lines = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) if lines else self._column + at + 1
        return f"{self.path}:{self._line + lines}", column

    def _more(self) -> bool:
        """Read at least as much again, so that a long value is not parsed anew too often."""
        parsed = self._text[: self._at]
        lines = parsed.count("\n")
        self._line += lines
        self._column = len(parsed) - parsed.rfind("\n") - 1 if lines else self._column + self._at
        pieces = [self._text[self._at :]]
        wanted = max(PIECE, len(pieces[0]))
        while not self._ended and wanted > 0:
            try:
                piece = next(self._pieces, "")
            except GZIP_ERRORS as error:
                raise damaged_gzip(self.path, self._line, error) from error
            self._ended = not piece
            pieces.append(piece)
            wanted -= len(piece)
        grown = len(pieces) > 1 and bool("".join(pieces[1:]))
        self._text, self._at = "".join(pieces), 0
        return grown


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
