"""Datasets on disk: rows as they come, as JSON Lines and Parquet, whole or not at all.

A part is what is written at once, and a row group of the Parquet file. Where parts end depends on
what they are made from alone, so that the same input gives the same bytes.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf.storage import whole_folder
from hf_rlhf_traces.columns import Batch, Part
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.parquet_parts import PartsFile
from hf_rlhf_traces.rows import Split

DEFAULT = Layout()
SPLITS: tuple[Split, ...] = ("train", "validation")


@contextmanager
def dataset_written(
    folder: Path, dataset: str, layout: Layout = DEFAULT
) -> Iterator[Mapping[Split, "SplitWriter"]]:
    """Give a writer for each split; `folder` is replaced when the block ends without an error."""
    with whole_folder(folder, overwrite=True) as made, splits_written(made, dataset, layout) as two:
        yield two


@contextmanager
def splits_written(
    folder: Path, dataset: str, layout: Layout
) -> Iterator[Mapping[Split, "SplitWriter"]]:
    """Give a writer for each split into a folder that is there."""
    with ExitStack() as closing:
        writers = {split: SplitWriter(folder, split, Batch(dataset, layout)) for split in SPLITS}
        for writer in writers.values():
            closing.callback(writer.abandon)
        yield writers
        for writer in writers.values():
            writer.close()


class SplitWriter:
    """Writes one split of a dataset."""

    def __init__(self, folder: Path, split: Split, batch: Batch) -> None:
        self.rows = 0
        self._batch = batch
        self._lines = (folder / f"{split}.jsonl").open("wb") if batch.layout.jsonl else None
        self._parquet = PartsFile((folder / f"{split}.parquet").open("wb"))

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row, in the end. Raises DataError for text that UTF-8 cannot hold."""
        if self._batch.add(row):
            self.append(self._batch.take())

    def append(self, part: Part) -> None:
        """Write rows that a worker has put into their form."""
        if self._lines is not None:
            self._lines.write(part.lines.content)
        self._parquet.add(part.parquet.content)
        self.rows += part.rows

    def close(self) -> None:
        """Write what is left; a file without rows has its columns."""
        if self._batch.rows or not self.rows:
            self.append(self._batch.take())
        self._parquet.close()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the files, if they are open still."""
        if self._lines is not None:
            self._lines.close()
        self._parquet.file.close()


def written_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a dataset's JSON Lines, or its Parquet rows as such where those are not.

    Raises DataError where neither can be read.
    """
    import orjson
    import pyarrow.parquet as pq

    beside = path.with_suffix(".parquet")
    try:
        if path.exists() or not beside.exists():
            with path.open("rb") as file:
                yield from file
            return
        for batch in pq.ParquetFile(beside).iter_batches(256):
            for row in batch.to_pylist():
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.parent}: cannot be read: {error}. Make it anew.") from error
