"""Splits on disk: converted rows go to Arrow files batch by batch, and come back memory-mapped.

Memory holds one batch and the hashes of all rows. Column types are unified over all batches.
`Dataset.from_generator` takes its types from the first batch, and would read and convert the source
again once duplicates are known.
"""

import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hf_rlhf.data.arrow_rows import exact_json
from hf_rlhf.data.splits import HASHES
from hf_rlhf.errors import DataError, DiskError
from hf_rlhf.storage.disk import explain_disk_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

_TURN = {"role", "content"}

ConvertedRow = tuple[str, Mapping[str, Any], Sequence[int]]
"""The row's position, columns and `HASHES`."""


@contextmanager
def arrow_cache() -> Iterator[Path]:
    """Yield the folder in the cache of `datasets` where splits are written.

    Raises DiskError if it cannot be written, or while it is full.
    """
    from datasets import config

    cache = Path(config.HF_DATASETS_CACHE, "hf_rlhf")
    with explain_disk_errors(cache):
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(f"{error}. Set HF_DATASETS_CACHE to a folder to write in.") from error
        yield cache


class ArrowRows:
    """The converted rows of a source, in a file that the system deletes with this object.

    Lists in `conversation_columns` have the type of turns, even if all lists of a batch are empty.
    """

    def __init__(self, cache: Path, conversation_columns: frozenset[str]) -> None:
        # Unlinked, so that nothing is left on disk when this process is killed.
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=cache)  # noqa: SIM115 - until collected
        self._conversation_columns = conversation_columns
        self._digest = hashlib.blake2b(digest_size=16)
        self._hashes = array("Q")
        self.schema: pa.Schema | None = None

    def add(self, rows: Sequence[ConvertedRow]) -> None:
        """Write a batch of rows. Raises DataError for a column of two types."""
        import pyarrow as pa

        if not rows:
            return
        self._hashes.extend(chain.from_iterable(hashes for _, _, hashes in rows))
        names = list(dict.fromkeys(name for _, columns, _ in rows for name in columns))
        table = pa.table({name: self._array(name, rows) for name in names})
        try:
            self.schema = _unified([self.schema or table.schema, table.schema])
        except pa.ArrowException as error:
            raise _two_types(f"before {rows[0][0]} and from there on: {error}") from error
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        batch = sink.getvalue()
        self._digest.update(batch)
        self._file.write(batch)

    def _array(self, name: str, rows: Sequence[ConvertedRow]) -> "pa.Array":
        import pyarrow as pa

        values: list[Any] = [columns.get(name) for _, columns, _ in rows]
        is_conversation = name in self._conversation_columns and isinstance(values[0], list)
        if is_conversation and any(turn.keys() != _TURN for turns in values for turn in turns):
            # As text: a table of objects gives every object the keys of all others, with nulls.
            return pa.array(list(map(exact_json, values)), pa.json_())
        try:
            turns = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
            return pa.array(values, turns if is_conversation else None)
        except (pa.ArrowException, OverflowError) as error:
            raise _two_types(f"{rows[0][0]} or after it, field {name!r}: {error}") from error

    def hashes(self) -> dict[str, Any]:
        """Return each of `HASHES` as numpy uint64, shape (rows,)."""
        import numpy as np

        columns = np.frombuffer(self._hashes, np.uint64).reshape(-1, len(HASHES)).T  # no copy
        return dict(zip(HASHES, columns, strict=True))

    def write(self, mask: Any, schema: "pa.Schema", cache: Path) -> "Dataset":
        """Write the rows where `mask` (numpy bool, one per row) is set, and return them.

        The file name is a hash of its content, so a changed source is never read from an old file.
        The first process of a launch to lock it writes it for all.
        """
        import pyarrow as pa
        from datasets import Dataset, Features
        from datasets.table import cast_table_to_schema
        from filelock import FileLock

        schema = Features.from_arrow_schema(schema).arrow_schema
        name = self._digest.copy()
        name.update(mask)
        name.update(schema.serialize())
        path = cache / f"{name.hexdigest()}.arrow"
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                partial = path.with_suffix(".partial")
                with partial.open("wb") as file:
                    with pa.ipc.new_stream(file, schema) as writer:
                        try:
                            for table in self._selected(mask):
                                writer.write_table(cast_table_to_schema(table, schema))
                        except pa.ArrowException as error:
                            raise _two_types(
                                "rows far apart, in one of the fields "
                                f"{[each.name for each in {*table.schema} - {*schema}]}: {error}"
                            ) from error
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(partial, path)
        return Dataset.from_file(str(path))

    def _selected(self, mask: Any) -> Iterator["pa.Table"]:
        """Yield the rows where `mask` is set, batch by batch."""
        import pyarrow as pa

        start, end = 0, self._file.tell()
        self._file.seek(0)
        while self._file.tell() < end:
            with pa.ipc.open_stream(self._file) as reader:
                table = reader.read_all()
            selected = table.filter(pa.array(mask[start : start + len(table)]))
            start += len(table)
            if len(selected):
                yield selected

    def __del__(self) -> None:
        self._file.close()


def _two_types(problem: str) -> DataError:
    return DataError(
        f"a column has values of two types: {problem}. Make them one type, or leave the column "
        "out: `keep` lists the columns that stay."
    )


def _unified(schemas: Sequence["pa.Schema"]) -> "pa.Schema":
    """Return types that hold the values of all tables; JSON where any table has JSON."""
    import pyarrow as pa

    columns = [column for schema in schemas for column in schema]
    as_json = {column.name for column in columns if isinstance(column.type, pa.JsonType)}
    schemas = [
        pa.schema(
            column.with_type(pa.json_()) if column.name in as_json else column for column in schema
        )
        for schema in schemas
    ]
    return pa.unify_schemas(schemas, promote_options="permissive")


def common_schema(sources: Sequence[ArrowRows]) -> "pa.Schema":
    """Return types that can hold the rows of all sources."""
    import pyarrow as pa

    try:
        return _unified([rows.schema for rows in sources if rows.schema is not None])
    except pa.ArrowException as error:
        raise _two_types(f"in the training and the held-out source: {error}") from error
