"""Rows to the bytes of a dataset's files: JSON Lines, and a Parquet row group.

Contexts grow: the prompt of a step begins with the prompt of the step before it, and a
conversation repeats the one before. What is repeated is held once, as Arrow views on one buffer;
in Parquet, a prompt is what it adds to the one before (DELTA_BYTE_ARRAY), and pages are compressed.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from hf_rlhf.errors import DataError
from hf_rlhf_traces.bulk import Bulk
from hf_rlhf_traces.layout import Layout
from hf_rlhf_traces.rows import Lines, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

LONG = ("prompt", "answer", "summary")
"""Columns of long texts."""
BATCH_BYTES = 32 << 20
"""Of text; a row group holds more only by its last row."""
_DUMPS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_PASSTHROUGH_DATACLASS
_INLINE = 12
"""Bytes that an Arrow view holds itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows as they stand in files. Small, to be sent by a worker."""

    rows: int
    lines: Bulk
    """JSON Lines; b"" where they are not asked for."""
    parquet: Bulk
    """A Parquet file."""


class Batch:
    """Rows of one dataset and split, until they are taken as a part."""

    def __init__(self, dataset: str, layout: Layout) -> None:
        self.schema = arrow_schema(dataset)
        self.layout = layout
        self._begin()

    def add(self, row: Mapping[str, Any]) -> bool:
        """Add a row, and return whether the batch is full.

        Raises DataError for text that UTF-8 cannot hold.
        """
        try:
            if self.layout.jsonl:
                line = orjson.dumps(row, default=_joined, option=_DUMPS)
                self.lines.append(line)
            for name, add in self.adds:
                add(row[name])
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(
                f"sample {row['id']!r} cannot be written: {error}. Read the traces anew: what "
                "Unicode does not have is replaced or rejected there."
            ) from error
        self.rows += 1
        return sum([column.size for column in self.texts]) >= BATCH_BYTES

    def take(self) -> Part:
        """Return the rows as a part, and begin anew."""
        part = Part(self.rows, Bulk(b"".join(self.lines)), Bulk(self._parquet()))
        self._begin()
        return part

    def _begin(self) -> None:
        self.rows = 0
        self.lines: list[bytes] = []
        self.columns = {one.name: _column(one) for one in self.schema}
        self.texts = [one for one in self.columns.values() if isinstance(one, (_Texts, _Chats))]
        self.adds = [(name, column.add) for name, column in self.columns.items()]

    def _parquet(self) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = [column.array() for column in self.columns.values()]
        fields = [one.with_type(a.type) for one, a in zip(self.schema, arrays, strict=True)]
        schema, made = pa.schema(fields), pa.BufferOutputStream()
        plain = [one.name for one in self.schema if not pa.types.is_nested(one.type)]
        # Dictionaries are for values that repeat, long texts outgrow theirs; the stored schema
        # would have readers make views of them, too.
        with pq.ParquetWriter(
            made,
            schema,
            compression=self.layout.compression,
            use_dictionary=False,
            column_encoding={name: "DELTA_BYTE_ARRAY" for name in plain if name == "prompt"},
            write_statistics=[name for name in plain if name not in LONG],
            store_schema=False,
        ) as writer:
            if self.rows:
                writer.write_batch(pa.record_batch(arrays, schema=schema))
        written: bytes = made.getvalue().to_pybytes()
        return written


def _joined(value: Any) -> str:
    if isinstance(value, Lines):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _column(one: "pa.Field") -> "_Texts | _Chats | _Plain":
    import pyarrow as pa

    if one.name in LONG and pa.types.is_string(one.type):
        return _Texts()
    return _Chats(one.type) if pa.types.is_list(one.type) else _Plain(one.type)


def _array(values: list[Any], kind: "pa.DataType") -> "pa.Array":
    """Return values as Arrow's. `pa.array` would import pandas first: a quarter of a second."""
    import numpy as np
    import pyarrow as pa

    if not pa.types.is_string(kind):
        bare = np.array(values, str(kind))
        if pa.types.is_boolean(kind):
            bare = np.packbits(bare, bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(bare)])
    texts = [text.encode() for text in values]
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    buffers = [pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.StringArray.from_buffers(len(texts), *buffers)


@dataclass
class _Plain:
    kind: "pa.DataType"
    values: list[Any] = field(default_factory=list)

    @property
    def add(self) -> Callable[[Any], None]:
        return self.values.append

    def array(self) -> "pa.Array":
        return _array(self.values, self.kind)


@dataclass
class _Texts:
    """Texts as views on one buffer. One that begins with the text before it shares its place."""

    size: int = 0
    views: list[bytes] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    end: int = 0
    """Of what is in the buffer."""
    text: str | None = None
    view: bytes = b""
    """The last text, if it is known as one, and its view."""
    begin: int = 0
    """Where it begins in the buffer; at `end` if it is not there."""
    lines: Lines | None = None
    """The last text, if it was given as lines."""

    def add(self, text: str | Lines) -> None:
        if isinstance(text, Lines):
            self._add_lines(text)
            return
        self.lines = None
        if text == self.text:
            pass
        elif self.text and self.begin < self.end and text.startswith(self.text):
            more = text[len(self.text) :].encode()
            self.view = self._appended(more, self.view[4:8])
            self.text = text
        else:
            self.view = self.new(text)
        self.put(self.view)

    def _add_lines(self, lines: Lines) -> None:
        known = self.lines
        if known is None or known.all is not lines.all or known.count > lines.count:
            self.add(str(lines))
        else:
            more = [line.encode() for line in lines.all[known.count : lines.count]]
            self.text, self.view = None, self._appended(b"\n".join([b"", *more]), self.view[4:8])
            self.put(self.view)
        # Texts that are inline are not in the buffer, and cannot grow there.
        self.lines = lines if self.begin < self.end else None

    def put(self, view: bytes) -> None:
        """Add the text of a view."""
        self.size += int.from_bytes(view[:4], "little")
        self.views.append(view)

    def new(self, text: str) -> bytes:
        """Put a text into the buffer, and return its view."""
        encoded = text.encode()
        self.text, self.begin = text, self.end
        if len(encoded) <= _INLINE:
            return struct.pack("<i12s", len(encoded), encoded)
        return self._appended(encoded, encoded[:4])

    def _appended(self, more: bytes, first: bytes) -> bytes:
        self.parts.append(more)
        self.end += len(more)
        return struct.pack("<i4sii", self.end - self.begin, first, 0, self.begin)

    def array(self) -> "pa.Array":
        import pyarrow as pa

        buffers = [None, pa.py_buffer(b"".join(self.views)), pa.py_buffer(b"".join(self.parts))]
        return pa.Array.from_buffers(pa.string_view(), len(self.views), buffers)


@dataclass
class _Chats:
    """Lists of turns; a text that comes again is held once."""

    kind: "pa.DataType"
    offsets: list[int] = field(default_factory=lambda: [0])
    roles: list[str] = field(default_factory=list)
    contents: _Texts = field(default_factory=_Texts)
    known: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.contents.size

    def add(self, turns: list[dict[str, str]]) -> None:
        for turn in turns:
            text = turn["content"]
            if (view := self.known.get(text)) is None:
                view = self.known[text] = self.contents.new(text)
            self.contents.put(view)
            self.roles.append(turn["role"])
        self.offsets.append(len(self.roles))

    def array(self) -> "pa.Array":
        import pyarrow as pa

        role, content = self.kind.value_type
        fields = [role, content.with_type(pa.string_view())]
        turns = pa.StructArray.from_arrays(
            [_array(self.roles, pa.string()), self.contents.array()], fields=fields
        )
        kind = pa.list_(self.kind.value_field.with_type(turns.type))
        return pa.ListArray.from_arrays(_array(self.offsets, pa.int32()), turns, type=kind)
