"""Rows of files and datasets, each with its source position.

Sources: a Hub dataset, a folder, JSON Lines (plain or gzip), JSON, Parquet, CSV, TSV. All but JSON
arrays are streamed. Every error is a `DataError` that begins with file and line (or row). pyarrow
and datasets are imported when needed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from glob import glob, has_magic
from itertools import chain
from pathlib import Path
from typing import Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.formats import READERS
from hf_rlhf.data.lines import suffix_of
from hf_rlhf.errors import DataError, did_you_mean
from hf_rlhf.models.locate import absence_reason

_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), "validation"),
}
_HUB_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Row:
    """A row: its fields, and its position for error messages (`rows.jsonl:12`)."""

    values: dict[str, Any]
    where: str
    fault: DataError | None = None
    """The error of a row that cannot be read, which has no values."""
    ignored: frozenset[str] = frozenset()
    """Keys of its turns that are ignored on purpose."""

    def at(self, column: str) -> str:
        """Return the position of a column as a message prefix: `rows.jsonl:12: field 'prompt'`."""
        return f"{self.where}: field {column!r}"


@dataclass(frozen=True)
class Rows:
    """The rows of one split. Each iteration reads the source again."""

    name: str
    open: Callable[[], Iterator[Row]]
    columns: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Row]:
        """Yield rows with their columns renamed. Raise DataError at the first unusable row."""
        for row in self.with_faults():
            if row.fault is not None:
                raise row.fault
            yield rename(row, self.columns)

    def with_faults(self) -> Iterator[Row]:
        """Yield all rows before columns are renamed; an unreadable row carries its fault.

        Raise DataError if a file cannot be read further.
        """
        row = None
        for row in self.open():
            yield row
        if row is None:
            raise DataError(f"{self.name}: holds no rows. Expected at least one.")


@dataclass(frozen=True)
class Source:
    """Splits by name, and the commit that they were read at."""

    name: str
    splits: Mapping[str, Rows]
    commit: str | None = None
    """The commit of a Hub dataset, if known."""

    def split(self, name: str) -> Rows:
        """Return a split. Raise DataError with the known names if there is no such split."""
        if name not in self.splits:
            raise DataError(
                f"{self.name}: has no split {name!r}{did_you_mean(name, self.splits)}. "
                f"It has: {', '.join(self.splits)}."
            )
        return self.splits[name]


def read_rows(
    source: str | Path | Sequence[str],
    *,
    revision: str | None = None,
    subset: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Source:
    """Open a file, a folder or a Hub dataset; only names are read.

    Args:
        source: a path, a Hub dataset id (an existing path takes precedence), or several paths or
            patterns such as `data/*.jsonl`.
        revision: pins a Hub dataset to a branch, tag or commit. Refused for local files.
        subset: a Hub dataset's configuration name. Refused for local files.
        columns: new name -> name in the source, dotted to reach into an object
            (`{"positive_rubrics": "ground_truth.positive"}`). Other columns keep their names.

    In a folder, files whose name (or parent folder) contains a split word, as in
    `data/train-00000.parquet`, belong to that split; other files and a single file are `train`.
    This holds for each of several paths or matches of a pattern; equal splits are joined.
    """
    wanted = dict(columns or {})
    names = [source] if isinstance(source, str | Path) else source
    paths, name = _paths(names), ", ".join(map(str, names))
    if len(paths) == 1 and not os.path.exists(paths[0]):
        return _hub(name, revision, subset, wanted)
    if revision or subset:
        raise DataError(
            f"{name}: `{'revision' if revision else 'subset'}` is for Hub datasets, and this is a "
            "local path. Leave it out."
        )
    splits: dict[str, list[Callable[[], Iterator[Row]]]] = {}
    for path in paths:
        if not os.path.exists(path):
            raise DataError(
                f"{path}: no such file or folder{_near(path)}. Several paths are read from this "
                "machine; a Hub dataset can be one of the sources of a `mixture`."
            )
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            for split, rows in _saved_dataset(path).items():
                splits.setdefault(split, []).append(rows.open)
            continue
        for file in data_files(path) if path.is_dir() else [path]:
            part = file.relative_to(path) if path.is_dir() else Path(path.name)
            split = "train" if [path] == paths == [file] else _split_of(part)
            splits.setdefault(split, []).append(partial(_file_rows, file))

    def joined(parts: Sequence[Callable[[], Iterator[Row]]]) -> Iterator[Row]:
        return chain.from_iterable(part() for part in parts)

    is_file = len(paths) == 1 and not paths[0].is_dir()
    return Source(
        name,
        {
            split: Rows(name if is_file else f"{name} ({split})", partial(joined, parts), wanted)
            for split, parts in splits.items()
        },
    )


def _paths(names: Sequence[str | Path]) -> list[Path]:
    """Return paths by their names, with matches of a pattern sorted by name."""
    paths: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        files = sorted(map(Path, glob(str(path), recursive=True))) if has_magic(str(path)) else []
        paths += [path] if os.path.exists(path) or not files else files
    if not paths:
        raise DataError("the list of paths is empty. Expected at least one.")
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise DataError(f"{twice}: is named twice, so its rows would be read twice. Name it once.")
    return paths


def _near(path: Path) -> str:
    folder = os.path.isdir(path.parent)  # unlike Path.is_dir, no name makes it raise
    siblings = [entry.name for entry in path.parent.iterdir()] if folder else []
    return did_you_mean(path.name, siblings)


def data_files(path: Path) -> list[Path]:
    """Return a file, or the data files in a folder sorted by name, without hidden files.

    Raises DataError for an unsupported format, or a folder without data files.
    """
    if not path.is_dir():
        if (suffix := suffix_of(path)) not in READERS:
            raise DataError(
                f"{path}: {suffix or 'a name without suffix'} is not a format that is read here. "
                f"Expected one of {', '.join(READERS)}; all but Parquet may be gzipped (.gz)."
            )
        return [path]
    try:
        files = [
            file
            for file in sorted(path.rglob("*"))
            if suffix_of(file) in READERS and file.is_file()
            if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
        ]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not files:
        raise DataError(f"{path}: this folder holds no data files ({', '.join(READERS)}).")
    return files


def _file_rows(path: Path) -> Iterator[Row]:
    data_files(path)
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty (0 bytes). Expected at least one row.")
        for where, values in READERS[suffix_of(path)](path):
            yield Row({}, where, values) if isinstance(values, DataError) else Row(values, where)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def rename(row: Row, columns: Mapping[str, str]) -> Row:
    """Rename `columns` (new name -> present name, possibly dotted) of a row."""
    if not columns:
        return row
    mapped = set(columns.values())
    values = {name: value for name, value in row.values.items() if name not in mapped}
    for wanted, present in columns.items():
        values[wanted] = _reach(row, present)
    return replace(row, values=values)


def require(row: Row, names: Iterable[str]) -> None:
    """Raise DataError unless the row has all columns; suggest similar names."""
    missing = [name for name in names if name not in row.values]
    if missing:
        hints = ", ".join(f"{name!r}{did_you_mean(name, row.values)}" for name in missing)
        raise DataError(
            f"{row.where}: lacks {hints}. It has: {', '.join(row.values) or 'no columns'}. "
            "Rename the columns, or map them with `columns` (wanted name: name in the file)."
        )


def _reach(row: Row, dotted: str) -> Any:
    if dotted in row.values:
        return row.values[dotted]
    value: Any = row.values
    for part in dotted.split("."):
        if not isinstance(value, dict) or part not in value:
            names = list(value) if isinstance(value, dict) else []
            raise DataError(
                f"{row.where}: the column mapping names {dotted!r}, but there is no "
                f"{part!r}{did_you_mean(part, names)}. Columns: {', '.join(row.values)}."
            )
        value = value[part]
    return value


def _split_of(file: Path) -> str:
    for part in reversed(file.parts):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in _SPLIT_WORDS:
                return _SPLIT_WORDS[word]
    return "train"


def _saved_dataset(path: Path) -> dict[str, Rows]:
    from datasets import Dataset, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: this saved dataset cannot be read: {error}") from error
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    return _of_datasets(str(path), splits, {})


def _hub(name: str, revision: str | None, subset: str | None, columns: Mapping[str, str]) -> Source:
    # A mistyped file name must not become a request to the Hub.
    if not _HUB_ID.fullmatch(name) or suffix_of(Path(name)) in READERS:
        raise DataError(f"{name}: no such file or folder{_near(Path(name).expanduser())}.")
    from datasets import exceptions, load_dataset

    commit = dataset_commit(name, revision)
    if commit is None and (why := absence_reason(name, "dataset")):
        raise DataError(f"{name}: {why}")
    try:
        loaded = load_dataset(name, subset, revision=commit or revision)
    except (OSError, ValueError, exceptions.DatasetsError) as error:
        raise DataError(
            f"{name}: no local file or folder, and as a Hub dataset ({revision or 'main'}) "
            f"it cannot be loaded: {error} Check the name, `revision`, `subset`, your network, and "
            "`hf auth login` if it is private or gated."
        ) from error
    return Source(name, _of_datasets(name, dict(loaded), columns), commit)


def dataset_commit(name: str, revision: str | None = None) -> str | None:
    """Return the commit of a Hub dataset or its `revision`; None if the Hub gives no answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        return HfApi().dataset_info(name, revision=revision).sha
    except (HTTPError, OSError):
        return None  # unreachable, missing or private: load_dataset may have it in its cache


def _of_datasets(
    name: str, splits: Mapping[str, Any], columns: Mapping[str, str]
) -> dict[str, Rows]:
    def rows(split: str) -> Iterator[Row]:
        # As Arrow, since `datasets` would open the paths and URLs of a column of pictures.
        tables = splits[split].with_format("arrow").iter(batch_size=256)
        for number, values in enumerate(chain.from_iterable(map(arrow_rows, tables)), 1):
            yield Row(values, f"{name} ({split}), row {number}")

    return {split: Rows(f"{name} ({split})", partial(rows, split), columns) for split in splits}
