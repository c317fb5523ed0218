"""File formats: one file to (place, fields), a piece at a time, whatever its size.

Every error is a `DataError` that begins with file and line (or row). One that concerns a
single row, behind which the file can be read on, stands in the place of that row's fields; others
are raised.
pyarrow is imported when needed.
"""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.other_forms import refuse_other_form, what_object
from hf_rlhf.errors import DataError

LONGEST_CSV_FIELD = 1 << 28
"""Characters. Python's own limit of 131,072 is less than one page of tool output."""

PIECE = 1 << 20
"""Bytes of a JSON array that are read at a time."""

Placed = tuple[str, dict[str, Any] | DataError]
"""The location for error messages (`rows.jsonl:12`), and the row's fields, or its fault."""

_BOM = codecs.BOM_UTF8
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


def _binary(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    return path.open("rb")


def repeated_key(text: str) -> str | None:
    """Return a key that occurs twice in one object of a JSON text, or None."""
    decoder = _Decoder()
    decoder.decode(text)
    return decoder.repeated


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with _whole_gzip(path, lambda: number + 1), _binary(path) as file:
        for number, raw in enumerate(file, start=1):
            yield number, raw.removeprefix(_BOM) if number == 1 else raw


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(error, where, data, error.start) from error


def _pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces of at most `PIECE` bytes, though it be one line."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, before = 1, 0
    with _whole_gzip(path, lambda: line), _binary(path) as file:
        for raw in iter(lambda: file.readline(PIECE), b""):
            data = raw.removeprefix(_BOM) if line == 1 and not before else raw
            try:
                yield decoder.decode(data)
            except UnicodeDecodeError as error:
                at = before + error.start
                raise _not_utf8(error, f"{path}:{line}", error.object, at) from error
            ended = raw.endswith(b"\n")
            line, before = (line + 1, 0) if ended else (line, before + len(raw))
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _not_utf8(error, f"{path}:{line}", error.object, before) from error


@contextmanager
def _whole_gzip(path: Path, line: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}:{line()}: the gzip data breaks off or is damaged ({error}). "
            "Get the file again."
        ) from error


def _not_utf8(error: UnicodeDecodeError, where: str, data: bytes, at: int) -> DataError:
    hint = " It looks like UTF-16." if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    return DataError(
        f"{where}: is not UTF-8: byte 0x{data[error.start]:02x} at byte {at + 1} of "
        f"the line.{hint} Convert it: iconv -f ENCODING -t utf-8 FILE."
    )


def _json_lines(path: Path) -> Iterator[Placed]:
    first = True
    for number, data in _raw_lines(path):
        if not data.strip():
            continue
        where = f"{path}:{number}"
        try:
            yield where, _object(_parsed(_decoded(data, where), path, number), where)
        except DataError as error:
            if first:
                with _whole_gzip(path, lambda: number):  # noqa: B023 - left before the next line
                    refuse_other_form(data, path, lambda: _binary(path))
            yield where, error
        first = False


def _parsed(text: str, path: Path, line: int) -> Any:
    decoder = _Decoder()
    try:
        value = decoder.decode(text)
    except json.JSONDecodeError as error:
        problem = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        cut = "" if text.endswith("\n") else " The last line has no end: was the file cut off?"
        where = f"{path}:{line + error.lineno - 1}"
        raise DataError(f"{where}: is not valid JSON: {problem}.{cut} Mend that line.") from error
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


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: is {type(value).__name__}, expected a JSON object with one key per column."
        )
    return value


def _json(path: Path) -> Iterator[Placed]:
    window = _Window(path)
    if window.next() == "{":
        # Many tools write JSON Lines into files called .json.
        yield from _lines_of_json(path)
        return
    for number, value in enumerate(_items(window), start=1):
        where = f"{path}, row {number}"
        try:
            yield where, value if isinstance(value, DataError) else _object(value, where)
        except DataError as error:
            yield where, error


def _lines_of_json(path: Path) -> Iterator[Placed]:
    rows = _json_lines(path)
    where, first = next(rows)
    if isinstance(first, DataError):
        hint = "A .json file holds an array of objects, or one whole object a line."
        raise DataError(f"{first} {hint}") from first
    second = next(rows, None)
    if second is None and (what := what_object(first)):
        raise DataError(f"{where}: {what}")
    yield where, first
    if second is not None:
        yield second
    yield from rows


def _items(window: "_Window") -> Iterator[Any]:
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


class _Window:
    """The part of a JSON text that is being parsed; what has been parsed is forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces = _pieces(path)
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
            f"{where}: is not valid JSON: {problem} at column {column}.{hint} Mend that line."
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
            piece = next(self._pieces, "")
            self._ended = not piece
            pieces.append(piece)
            wanted -= len(piece)
        grown = len(pieces) > 1 and bool("".join(pieces[1:]))
        self._text, self._at = "".join(pieces), 0
        return grown


def _delimited(path: Path, delimiter: str) -> Iterator[Placed]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CSV_FIELD))
    lines = (_decoded(data, f"{path}:{number}") for number, data in _raw_lines(path))
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


def _parquet(path: Path) -> Iterator[Placed]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for values in arrow_rows(batch):
                    number += 1
                    yield f"{path}, row {number}", values
    except (pyarrow.ArrowException, OSError) as error:
        problem = str(error).removesuffix(".")
        raise DataError(
            f"{path}, row {number + 1}: is not readable Parquet: {problem}. Get the file again."
        ) from error


READERS: Mapping[str, Callable[[Path], Iterator[Placed]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": lambda path: _delimited(path, ","),
    ".tsv": lambda path: _delimited(path, "\t"),
}
"""Suffix -> reader of such a file."""
