"""Datasets on disk: rows as they come, as JSON Lines and Parquet, whole or not at all.

A batch is what is written at once, and a row group of the Parquet file. Where batches end depends
on the rows alone, so that the same rows give the same bytes.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hf_rlhf.errors import DataError
from hf_rlhf.files import whole_folder
from hf_rlhf_traces.rows import Split, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SPLITS: tuple[Split, ...] = ("train", "validation")
BATCH_BYTES = 32 << 20
"""Of JSON; a row group holds more only if one row does."""
COMPRESSION = "zstd"


@contextmanager
def dataset_written(folder: Path, dataset: str) -> Iterator[Mapping[Split, "SplitWriter"]]:
    """Give a writer for each split; `folder` is replaced when the block ends without an error."""
    with whole_folder(folder, overwrite=True) as made, ExitStack() as closing:
        schema = arrow_schema(dataset)
        writers = {split: SplitWriter(made, split, schema) for split in SPLITS}
        for writer in writers.values():
            closing.callback(writer.abandon)
        yield writers
        for writer in writers.values():
            writer.close()


@dataclass
class SplitWriter:
    """Writes one split of a dataset."""

    folder: Path
    split: Split
    schema: "pa.Schema"
    rows: int = 0
    _waiting: list[Mapping[str, Any]] = field(default_factory=list)
    _size: int = 0
    _lines: IO[bytes] = field(init=False)
    _parquet: "pq.ParquetWriter" = field(init=False)

    def __post_init__(self) -> None:
        import pyarrow.parquet as pq

        self._lines = (self.folder / f"{self.split}.jsonl").open("wb")
        target = self.folder / f"{self.split}.parquet"
        self._parquet = pq.ParquetWriter(target, self.schema, compression=COMPRESSION)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row, in the end. Raises DataError for text that UTF-8 cannot hold."""
        import orjson

        try:
            line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError as error:
            raise DataError(
                f"sample {row['id']!r} cannot be written: {error}. Read the traces anew: what "
                "Unicode does not have is replaced or rejected there."
            ) from error
        self._lines.write(line)
        self._waiting.append(row)
        self._size += len(line)
        self.rows += 1
        if self._size >= BATCH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left."""
        self._flush()
        self._lines.close()
        self._parquet.close()

    def abandon(self) -> None:
        """Let go of the files, if they are open still."""
        self._lines.close()
        if self._parquet.is_open:
            self._parquet.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._parquet.write_batch(pa.RecordBatch.from_pylist(self._waiting, self.schema))
        self._waiting, self._size = [], 0
