"""Rows on disk: written batch by batch as they come, and again as the splits that are kept.

Nothing but one batch and three hashes a row is in memory. The types of columns are those that
all batches can be read as. A split is named by a hash of its content in the cache of `datasets`,
so a source that has changed can never be answered from an old file.
"""

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.selection import HASHES

BATCH_ROWS = 512
BATCH_CHARACTERS = 16_000_000


SpoolRow = tuple[str, Mapping[str, Any], Sequence[int]]
"""Where the row stands, its columns, and its `HASHES`."""


def _new_hashes() -> tuple["array[int]", ...]:
    return tuple(array("Q") for _ in HASHES)


@dataclass
class Spool:
    """The usable rows of one source, in a temporary file."""

    path: Path
    own: frozenset[str]
    """Columns made here; messages among them have the type of turns whatever a batch holds."""
    schema: Any = None
    _offsets: list[int] = field(default_factory=list)
    _hashes: tuple["array[int]", ...] = field(default_factory=_new_hashes)
    _file: IO[bytes] | None = None

    def add(self, rows: Sequence[SpoolRow]) -> None:
        """Write a batch of rows. Raises DataError for a column of two types."""
        import pyarrow as pa

        if not rows:
            return
        for place, known in enumerate(self._hashes):
            known.extend(hashes[place] for _, _, hashes in rows)
        names = list(dict.fromkeys(name for _, columns, _ in rows for name in columns))
        table = pa.table({name: self._array(name, rows) for name in names})
        try:
            schemas = [self.schema or table.schema, table.schema]
            self.schema = pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException as error:
            raise _two_types(str(error), f"before {rows[0][0]} and from there on") from error
        if self._file is None:
            self._file = self.path.open("wb")
        self._offsets.append(self._file.tell())
        with pa.ipc.new_stream(self._file, table.schema) as writer:
            writer.write_table(table)

    def _array(self, name: str, rows: Sequence[SpoolRow]) -> Any:
        import pyarrow as pa

        values = [columns.get(name) for _, columns, _ in rows]
        turns = name in self.own and isinstance(values[0], list)
        try:
            return pa.array(values, _turns_type() if turns else None)
        except (pa.ArrowException, OverflowError) as error:
            where = next(
                (
                    where
                    for end, (where, _, _) in enumerate(rows, start=1)
                    if not _holds(values[:end])
                ),
                rows[0][0],
            )
            raise _two_types(f"column {name!r}: {error}", f"first at {where}") from error

    def close(self) -> None:
        """End writing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def hashes(self) -> dict[str, Any]:
        """Return each of `HASHES` as numpy uint64, one per row."""
        import numpy as np

        columns = (np.frombuffer(known, np.uint64) for known in self._hashes)  # no copies
        return dict(zip(HASHES, columns, strict=True))

    def batches(self) -> Iterator[Any]:
        """Yield the batches as tables."""
        import pyarrow as pa

        if not self._offsets:
            return
        with pa.OSFile(str(self.path)) as file:  # read once: mapped pages would only pile up
            for offset in self._offsets:
                file.seek(offset)
                with pa.ipc.open_stream(file) as reader:
                    yield reader.read_all()


def _holds(values: Sequence[Any]) -> bool:
    import pyarrow as pa

    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _two_types(said: str, where: str) -> DataError:
    return DataError(
        f"a column has values of two types, {where}: {said}. Make them one type, or leave the "
        "column out: `keep` lists the columns that stay."
    )


def _turns_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


def common_schema(spools: Sequence[Spool]) -> Any:
    """Return the types in which all rows can be written; what is always null counts as text."""
    import pyarrow as pa

    try:
        schema = pa.unify_schemas(
            [spool.schema for spool in spools if spool.schema is not None],
            promote_options="permissive",
        )
    except pa.ArrowException as error:
        raise _two_types(str(error), "in the training and the held-out source") from error
    return pa.schema([(one.name, _null_as_text(one.type)) for one in schema])


def _null_as_text(kind: Any) -> Any:
    """Return a type with text for null, however deep: pyarrow cannot cast null within lists."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_null_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _null_as_text(one.type)) for one in kind])
    return kind


def write_split(spool: Spool, mask: Any, schema: Any, folder: Path) -> Any:
    """Write the rows of a spool where `mask` is set and return them as a memory-mapped Dataset."""
    import pyarrow as pa
    from datasets import Dataset, Features

    schema = Features.from_arrow_schema(schema).arrow_schema
    temporary = spool.path.with_suffix(".split")  # where it goes if this process is killed
    start = 0
    try:
        with temporary.open("wb") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for table in spool.batches():
                    chosen = table.filter(pa.array(mask[start : start + len(table)]))
                    start += len(table)
                    if len(chosen):
                        writer.write_table(_as(chosen, schema))
            file.flush()
            os.fsync(file.fileno())  # its content is never looked at again
        final = folder / f"{_digest(temporary)}.arrow"
        # One of this content and length is whole; one that a crash has cut short is replaced.
        if not final.exists() or final.stat().st_size != temporary.stat().st_size:
            os.replace(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)
    return Dataset.from_file(str(final))


def _as(table: Any, schema: Any) -> Any:
    import pyarrow as pa

    columns = []
    for one in schema:
        if one.name not in table.column_names:
            columns.append(pa.nulls(len(table), one.type))
            continue
        try:
            columns.append(table[one.name].cast(one.type))
        except pa.ArrowException as error:
            where = "in rows that lie far apart"
            raise _two_types(f"column {one.name!r}: {error}", where) from error
    return pa.table(columns, schema=schema)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
