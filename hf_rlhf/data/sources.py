"""Files and datasets to rows, each row knowing where it stands.

Sources: a Hub dataset, a folder, JSON Lines (plain or gzip), JSON, Parquet, CSV, TSV, all read a
piece at a time. Every error is a `DataError` that begins with file and line (or row). pyarrow and
datasets are imported when needed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hf_rlhf.data.arrow_rows import arrow_rows
from hf_rlhf.data.formats import READERS
from hf_rlhf.data.other_forms import FOREIGN
from hf_rlhf.errors import DataError, suggest
from hf_rlhf.models.locate import absent

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
    fault: DataError | None = None
    """Why this row cannot be read; if set, it has no values."""


@dataclass(frozen=True)
class Rows:
    """The rows of one split. Iterating reads the source anew, so it may be done more than once."""

    name: str
    open: Callable[[], Iterator[Row]]
    columns: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Row]:
        """Yield rows with their columns renamed. Raise DataError at the first that is unusable."""
        for row in self.with_faults():
            if row.fault is not None:
                raise row.fault
            yield rename(row, self.columns)

    def with_faults(self) -> Iterator[Row]:
        """Yield all rows, those that cannot be read with their fault, before columns are renamed.

        Raise DataError for a file that cannot be read on.
        """
        row = None
        for row in self.open():
            yield row
        if row is None:
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
    return Source(str(path), {"train": Rows(str(path), lambda: _file_rows(path), wanted)})


def read_file(path: Path) -> Iterator[Row]:
    """Yield the rows of one file, by its suffix. Raise DataError with file and line or row."""
    for row in _file_rows(path):
        if row.fault is not None:
            raise row.fault
        yield row


def _file_rows(path: Path) -> Iterator[Row]:
    suffix = _suffix(path)
    if suffix not in READERS:
        raise DataError(
            f"{path}: {suffix or 'a name without suffix'} is not a format that is read here. "
            f"Expected one of {', '.join(READERS)}; all but Parquet may be gzipped (.gz)."
            f"{FOREIGN.get(suffix, '')}"
        )
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path}: is empty (0 bytes). Expected at least one row.")
        for where, values in READERS[suffix](path):
            yield Row({}, where, values) if isinstance(values, DataError) else Row(values, where)
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
    close = suggest(name, known)
    return f" (did you mean {close!r}?)" if close else ""


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
            if not hidden and _suffix(file) in READERS and file.is_file():
                files.setdefault(_split_of(file.relative_to(path)), []).append(file)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    if not files:
        raise DataError(f"{path}: this folder holds no data files ({', '.join(READERS)}).")
    splits = {
        split: Rows(f"{path} ({split})", _chained(members), columns)
        for split, members in files.items()
    }
    return Source(str(path), splits)


def _chained(files: list[Path]) -> Callable[[], Iterator[Row]]:
    return lambda: (row for file in files for row in _file_rows(file))


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
    if not _HUB_ID.fullmatch(name) or _suffix(Path(name)) in READERS:
        folder = Path(name).expanduser().parent
        known = [entry.name for entry in folder.iterdir()] if os.path.isdir(folder) else []
        raise DataError(f"{name}: no such file or folder{near(Path(name).name, known)}.")
    from datasets import exceptions, load_dataset

    commit = dataset_commit(name, revision)
    if commit is None and (why := absent(name, "dataset")):
        raise DataError(f"{name}: {why}")
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


def dataset_commit(name: str, revision: str | None = None) -> str | None:
    """Return the commit of a Hub dataset, or of its `revision`; None if the Hub cannot say."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        return HfApi().dataset_info(name, revision=revision).sha
    except (HTTPError, OSError):
        return None  # unreachable, missing or private: load_dataset may have it in its cache


def _of_datasets(
    name: str, splits: Mapping[str, Any], columns: Mapping[str, str]
) -> dict[str, Rows]:
    def opener(split: str) -> Callable[[], Iterator[Row]]:
        def rows() -> Iterator[Row]:
            # As Arrow, since `datasets` would open the paths and URLs of a column of pictures.
            tables = splits[split].with_format("arrow").iter(batch_size=256)
            for number, values in enumerate(chain.from_iterable(map(arrow_rows, tables)), start=1):
                yield Row(values, f"{name} ({split}), row {number}")

        return rows

    return {split: Rows(f"{name} ({split})", opener(split), columns) for split in splits}
