"""Store datasets as on the Hub: `train-00000-of-00002.parquet`, a folder per dataset.

The distribution of rows over shards depends only on the input.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import DataError
from hf_rlhf.steps import file_digest
from hf_rlhf.storage import atomic_dir
from hf_rlhf_traces.rows import Split, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS: tuple[Split, ...] = ("train", "validation")
SHARD_ROWS = 20_000
Row = Mapping[str, Any]


@contextmanager
def dataset_writer(
    folder: Path, dataset: str
) -> "Iterator[Callable[[Split, pa.Table | Sequence[Row]], None]]":
    """Yield a function that adds rows to a split of `folder/dataset`, which is replaced at the end.

    A shard ends at `SHARD_ROWS` rows or more; each call writes a row group.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, counts = arrow_schema(dataset), Counter[Split]()
    with atomic_dir(folder / dataset, overwrite=True) as unfinished:
        with ExitStack() as files:
            writers: dict[Split, pq.ParquetWriter] = {}
            shards = Counter[Split]()

            def write(split: Split, rows: pa.Table | Sequence[Row]) -> None:
                if counts[split] >= SHARD_ROWS * shards[split]:
                    path = unfinished / f"{split}-{shards[split]:05d}.parquet"
                    # zstd compresses repetitions between successive prompts.
                    writer = pq.ParquetWriter(path, schema, compression="zstd")
                    writers[split] = files.enter_context(writer)
                    shards[split] += 1
                table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema)
                writers[split].write_table(table.cast(schema))
                counts[split] += len(rows)

            yield write
        for split, count in shards.items():
            for path in unfinished.glob(f"{split}-*.parquet"):
                path.rename(path.with_stem(f"{path.stem}-of-{count:05d}"))


def shard_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a dataset's split in order; empty for a split without rows."""
    return sorted(folder.glob(f"{split}-*-of-*.parquet"))


def split_digest(folder: Path, *splits: str) -> str:
    """Return the sha256 of the contents of splits, in 64 hex digits."""
    paths = [path for split in splits for path in shard_files(folder, split)]
    return hashlib.sha256(b"".join(bytes.fromhex(file_digest(path)) for path in paths)).hexdigest()


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
