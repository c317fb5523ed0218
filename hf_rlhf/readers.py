"""Files and datasets to rows, each row knowing where it stands.

Sources: a Hub dataset, a folder, JSON Lines (plain or gzip), JSON, Parquet, CSV, TSV. Text
formats and Parquet are read a piece at a time; a `.json` array is read whole. Every error is a
`DataError` that begins with file and line (or row). pyarrow and datasets are imported when needed.
"""

import csv
import difflib
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from hf_rlhf.errors import DataError

LONGEST_CSV_FIELD = 1 << 28
"""Characters. Python's own limit of 131,072 is less than one page of tool output."""

_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), "validation"),
}
_HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Row:
    """One row: its fields, and the place to name in an error (`rows.jsonl:12`)."""

    values: dict[str, Any]
    where: str


@dataclass(frozen=True)
class Rows:
    """The rows of one split. Iterating reads the source anew, so it may be done more than once."""

    name: str
    open: Callable[[], Iterator[Row]]
    columns: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Row]:
        """Yield rows with their columns renamed. Raise DataError at the first that is unusable."""
        found = False
        for row in self.open():
            found = True
            yield rename(row, self.columns)
        if not found:
            raise DataError(f"{self.name}: holds no rows. Expected at least one.")


@dataclass(frozen=True)
class Source:
    """What `read_rows` found: splits by name, and the commit they were read at."""

    name: str
    splits: Mapping[str, Rows]
    commit: str | None = None
    """The Hub commit, when the source is a Hub dataset and the Hub could say."""

    def split(self, name: str) -> Rows:
        """Return one split. Raise DataError, with the names there are, for an unknown one."""
        if name not in self.splits:
            raise DataError(
                f"{self.name}: has no split {name!r}{near(name, self.splits)}. "
                f"It has: {', '.join(self.splits)}."
            )
        return self.splits[name]


def read_rows(
    source: str | Path,
    *,
    revision: str | None = None,
    subset: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Source:
    """Open a file, a folder or a Hub dataset; nothing but names is read yet.

    Args:
        source: a path, or a Hub dataset id. An existing path wins over a Hub id of that name.
        revision: pins a Hub dataset to a branch, tag or commit. Refused for local files.
        subset: a Hub dataset's configuration name. Refused for local files.
        columns: names wanted -> names in the source, which may be dotted to reach into an object
            (`{"positive_rubrics": "ground_truth.positive"}`). Other columns keep their names.

    In a folder, files whose name (or parent folder) holds a split word, as in
    `data/train-00000.parquet`, are that split; the others, and a single file, are `train`.
    """
    wanted, path = dict(columns or {}), Path(source).expanduser()
    if not os.path.exists(path):  # unlike Path.exists, no name makes it raise
        return _hub(str(source), revision, subset, wanted)
    if revision or subset:
        raise DataError(
            f"{source}: {'revision' if revision else 'subset'} cannot be honoured, since this is "
            "a local path. Leave it out, or give a Hub dataset id."
        )
    if path.is_dir():
        return _folder(path, wanted)
    return Source(str(path), {"train": Rows(str(path), lambda: read_file(path), wanted)})


def read_file(path: Path) -> Iterator[Row]:
    """Yield the rows of one file, by its suffix. Raise DataError with file and line or row."""
    suffix = _suffix(path)
    if suffix not in _READERS:
        raise DataError(
            f"{path}: {suffix or 'a name without suffix'} is not a format that is read here. "
            f"Expected one of {', '.join(_READERS)}; all but Parquet may be gzipped (.gz)."
        )
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty (0 bytes). Expected at least one row.")
        yield from _READERS[suffix](path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def rename(row: Row, columns: Mapping[str, str]) -> Row:
    """Return the row with `columns` (wanted -> present, maybe dotted) under their wanted names."""
    if not columns:
        return row
    taken = set(columns.values())
    values = {name: value for name, value in row.values.items() if name not in taken}
    for wanted, present in columns.items():
        values[wanted] = _reach(row, present)
    return replace(row, values=values)


def require(row: Row, names: Iterable[str]) -> None:
    """Raise DataError unless the row has every column, with near names for those it lacks."""
    missing = [name for name in names if name not in row.values]
    if missing:
        hints = ", ".join(f"{name!r}{near(name, row.values)}" for name in missing)
        raise DataError(
            f"{row.where}: lacks {hints}. It has: {', '.join(row.values) or 'no columns'}. "
            "Rename the columns, or map them with `columns` (wanted name: name in the file)."
        )


def near(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known name, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _reach(row: Row, dotted: str) -> Any:
    if dotted in row.values:
        return row.values[dotted]
    value: Any = row.values
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            known = list(value) if isinstance(value, dict) else []
            raise DataError(
                f"{row.where}: the column mapping names {dotted!r}, but there is no "
                f"{part!r}{near(part, known)}. Columns: {', '.join(row.values)}."
            )
        value = value[part]
    return value


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _folder(path: Path, columns: Mapping[str, str]) -> Source:
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _saved_dataset(path, columns)
    files: dict[str, list[Path]] = {}
    try:
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
            if not hidden and _suffix(file) in _READERS and file.is_file():
                files.setdefault(_split_of(file.relative_to(path)), []).append(file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not files:
        raise DataError(f"{path}: this folder holds no data files ({', '.join(_READERS)}).")
    splits = {
        split: Rows(f"{path} ({split})", _chained(members), columns)
        for split, members in files.items()
    }
    return Source(str(path), splits)


def _chained(files: list[Path]) -> Callable[[], Iterator[Row]]:
    return lambda: (row for file in files for row in read_file(file))


def _split_of(file: Path) -> str:
    for part in reversed(file.parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _SPLIT_WORDS:
                return _SPLIT_WORDS[word]
    return "train"


def _saved_dataset(path: Path, columns: Mapping[str, str]) -> Source:
    from datasets import Dataset, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: this saved dataset cannot be read: {error}") from error
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    return Source(str(path), _of_datasets(str(path), splits, columns))


def _hub(name: str, revision: str | None, subset: str | None, columns: Mapping[str, str]) -> Source:
    # A file that was mistyped must not become a search on the internet.
    if not _HUB_ID.fullmatch(name) or _suffix(Path(name)) in _READERS:
        folder = Path(name).expanduser().parent
        known = [entry.name for entry in folder.iterdir()] if os.path.isdir(folder) else []
        raise DataError(f"{name}: no such file or folder{near(Path(name).name, known)}.")
    from datasets import exceptions, load_dataset

    commit = _commit(name, revision)
    try:
        loaded = load_dataset(name, subset, revision=commit or revision)
    except (OSError, ValueError, exceptions.DatasetsError) as error:
        raise DataError(
            f"{name}: no local file or folder of that name, and as a Hub dataset"
            f"{f' at {revision}' if revision else ''} it cannot be loaded: {error} "
            "Check the name, `revision`, `subset`, your network, and `hf auth login` if it is "
            "private or gated."
        ) from error
    return Source(name, _of_datasets(name, dict(loaded), columns), commit)


def _commit(name: str, revision: str | None) -> str | None:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(name, revision=revision).sha
    except OSError:
        return None  # unreachable, missing or private: load_dataset may have it in its cache


def _of_datasets(
    name: str, splits: Mapping[str, Any], columns: Mapping[str, str]
) -> dict[str, Rows]:
    def opener(split: str) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            # As Arrow, since `datasets` would open the paths and URLs of a column of pictures.
            tables = splits[split].with_format("arrow").iter(batch_size=256)
            for number, values in enumerate((v for t in tables for v in t.to_pylist()), start=1):
                yield Row(values, f"{name} ({split}), row {number}")

        return rows

    return {split: Rows(f"{name} ({split})", opener(split), columns) for split in splits}


def _binary(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rb")
    return path.open("rb")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with _binary(path) as file:
            for number, raw in enumerate(file, start=1):
                data = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                yield number, _utf8(data, f"{path}:{number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}:{number + 1}: the gzip data breaks off or is damaged ({error}). "
            "Get the file again."
        ) from error


def _utf8(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = " It looks like UTF-16." if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise DataError(
            f"{where}: is not UTF-8: byte 0x{data[error.start]:02x} at byte {error.start + 1} of "
            f"the line.{hint} Convert it: iconv -f ENCODING -t utf-8 FILE."
        ) from error


def _json_lines(path: Path) -> Iterator[Row]:
    for number, text in _lines(path):
        if text.strip():
            where = f"{path}:{number}"
            yield Row(_object(_parsed(text, path, number), where), where)


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        said = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        cut = "" if text.endswith("\n") else " The last line has no end: was the file cut off?"
        where = f"{path}:{line + error.lineno - 1}"
        raise DataError(f"{where}: is not valid JSON: {said}.{cut} Mend that line.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}:{line}: is not usable JSON: {error}.") from error
    if "\\ud" in text or "\\uD" in text:
        _refuse_half_characters(value, f"{path}:{line}")
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


def _json(path: Path) -> Iterator[Row]:
    first = next((text for _, text in _lines(path) if text.strip()), "")
    if first.lstrip().startswith("{"):
        # Many tools write JSON Lines into files called .json.
        yield from _json_lines(path)
        return
    values = _parsed("".join(text for _, text in _lines(path)), path, 1)
    if not isinstance(values, list):
        raise DataError(f"{path}: is {type(values).__name__}, expected an array of objects.")
    for number, value in enumerate(values, start=1):
        where = f"{path}, row {number}"
        yield Row(_object(value, where), where)


def _delimited(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CSV_FIELD))
    lines = (text for _, text in _lines(path))
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    start = 1
    try:
        names = reader.fieldnames or []
        start = reader.line_num + 1
        for values in reader:
            where = f"{path}:{start}"
            start = reader.line_num + 1
            yield Row(_complete(values, where, names), where)
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: is not valid CSV: {error}. A quote may be open, or the file cut off."
        ) from error


def _complete(values: dict[Any, Any], where: str, names: Iterable[str]) -> dict[str, Any]:
    missing = [name for name in names if values.get(name) is None]
    if missing or None in values:
        trouble = f"lacks {', '.join(missing)}" if missing else "has more fields than the header"
        raise DataError(
            f"{where}: {trouble}; the header names {', '.join(names)}. "
            "Quote fields that hold the separator or a line break."
        )
    return values


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}, row {number + 1}: is not readable Parquet: {error}. Get the file again."
        ) from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".csv": lambda path: _delimited(path, ","),
    ".tsv": lambda path: _delimited(path, "\t"),
}
