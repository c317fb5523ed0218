"""Datasets on disk as the Hub has them: `train-00000-of-00002.parquet`, a folder for each dataset.

Each worker writes its own shards. Which rows are in which shard depends on the input alone.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf.steps import file_digest
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.rows import Split, arrow_schema

SPLITS: tuple[Split, ...] = ("train", "validation")
ROW_GROUP = 16 << 20
"""Characters of text after which a row group ends."""
SHARD_ROWS = 20_000
"""Rows of a shard, where these are counted."""
Row = Mapping[str, Any]


class ShardWriter:
    """Writes one shard of a dataset: a Parquet file for each split that gets rows."""

    def __init__(self, folder: Path, dataset: str, number: int) -> None:
        self._paths = {split: folder / f"{split}-{number:05d}.parquet" for split in SPLITS}
        for path in self._paths.values():
            path.unlink(missing_ok=True)
        self._schema = arrow_schema(dataset)
        self._pending: dict[Split, list[Row]] = {split: [] for split in SPLITS}
        self._sizes = dict.fromkeys(SPLITS, 0)
        self._files: dict[Split, Any] = {}

    def add(self, split: Split, rows: Sequence[Row]) -> None:
        """Add rows."""
        self._pending[split].extend(rows)
        self._sizes[split] += sum(map(_text_size, rows))
        if self._sizes[split] >= ROW_GROUP:
            self._write(split)

    def close(self) -> None:
        """Write the rest, and finish the files."""
        for split in SPLITS:
            if self._pending[split]:
                self._write(split)
        for file in self._files.values():
            file.close()

    def _write(self, split: Split) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows, self._pending[split], self._sizes[split] = self._pending[split], [], 0
        table = pa.Table.from_pylist(rows, self._schema)
        if split not in self._files:
            # Long texts outgrow a dictionary. What a prompt repeats of the one before, zstd finds.
            self._files[split] = pq.ParquetWriter(
                self._paths[split],
                self._schema,
                compression="zstd",
                use_dictionary=["trace", "question_key"],
                write_statistics=["step", "steps"],
            )
        self._files[split].write_table(table, row_group_size=len(rows))


@contextmanager
def dataset_writer(folder: Path, dataset: str) -> Iterator[Callable[[Split, Row], None]]:
    """Give a function that adds a row to a split of `folder/dataset`, which is replaced in the end.

    A shard has `SHARD_ROWS` rows.
    """
    with atomic_dir(folder / dataset, overwrite=True) as unfinished:
        writer, count = ShardWriter(unfinished, dataset, 0), 0

        def add(split: Split, row: Row) -> None:
            nonlocal writer, count
            if count and count % SHARD_ROWS == 0:
                writer.close()
                writer = ShardWriter(unfinished, dataset, count // SHARD_ROWS)
            count += 1
            writer.add(split, [row])

        yield add
        writer.close()
        name_shards(unfinished)


def _text_size(row: Row) -> int:
    """Return the characters of a row's texts and conversations."""
    size = 0
    for value in row.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list):
            size += sum(len(each if isinstance(each, str) else each["content"]) for each in value)
    return size


def name_shards(folder: Path) -> None:
    """Give the shards of a folder their final names, in the order of their numbers."""
    for split in SPLITS:
        paths = sorted(folder.glob(f"{split}-*.parquet"))
        for number, path in enumerate(paths):
            path.rename(folder / f"{split}-{number:05d}-of-{len(paths):05d}.parquet")


def shard_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a split of a dataset in order; none for a split without rows."""
    return sorted(folder.glob(f"{split}-*-of-*.parquet"))


def split_digest(folder: Path, *splits: str) -> str:
    """Return the sha256 of the contents of splits, in 64 hex digits."""
    paths = [path for split in splits for path in shard_files(folder, split)]
    return hashlib.sha256(b"".join(bytes.fromhex(file_digest(path)) for path in paths)).hexdigest()


def row_count(folder: Path, split: str) -> int:
    """Return the number of rows of a split."""
    import pyarrow.parquet as pq

    return sum(int(pq.read_metadata(path).num_rows) for path in shard_files(folder, split))


def dataset_rows(
    folder: Path, split: str, columns: Sequence[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a split in order. Raises DataError for a file that cannot be read."""
    import pyarrow.parquet as pq

    try:
        for path in shard_files(folder, split):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(256, columns=columns):
                    yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read: {error}. Build it again.") from error
