"""Rows of Arrow tables, with what their columns of JSON hold.

`datasets` keeps lists of unlike objects, as agents' steps and messages are, as JSON texts in
columns of Arrow's JSON type, and parses them when a row is read. pyarrow does not.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

Decode = Callable[[Any], Any]
_BATCH = 1000


def arrow_rows(table: "pa.Table | pa.RecordBatch") -> Iterator[dict[str, Any]]:
    """Yield each row of a table. A text of a JSON column that is no JSON stays as it is."""
    held = {field.name: decode for field in table.schema if (decode := _decoder(field.type))}
    for values in table.to_pylist():
        for name, decode in held.items():
            values[name] = decode(values[name])
        yield values


def _decoder(kind: "pa.DataType") -> Decode | None:
    import pyarrow as pa

    if isinstance(kind, pa.JsonType):
        return _parsed
    if pa.types.is_struct(kind):
        inside = {field.name: made for field in kind if (made := _decoder(field.type))}
        return (lambda value: _fields(value, inside)) if inside else None
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if (lists or pa.types.is_fixed_size_list(kind)) and (inner := _decoder(kind.value_type)):
        return lambda value: None if value is None else [inner(one) for one in value]
    return None


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _fields(value: Any, inside: dict[str, Decode]) -> Any:
    if value is None:
        return None
    return {**value, **{name: decode(value[name]) for name, decode in inside.items()}}


def rows_digest(rows: "Dataset") -> str:
    """Return a digest of a dataset's content: equal for equal rows in equal order, on any machine.

    It depends on names and values, not on files, chunks, the order of columns, or the width of a
    type, which differ between ways to load one dataset. It is made batch by batch, at about a
    gigabyte of text a second. Against accidents, not against anyone: xxHash is not cryptographic.
    """
    import xxhash

    digest = xxhash.xxh3_128()
    names = sorted(rows.column_names)
    digest.update(json.dumps([len(rows), names]).encode())
    for table in rows.with_format("arrow").iter(_BATCH):
        for name in names:
            _add_values(digest, table.column(name).combine_chunks())
    return digest.hexdigest()


def _add_values(digest: Any, values: "pa.Array") -> None:
    """Add which values of an array are null, then the others, level by level."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    digest.update(np.packbits(values.is_valid().to_numpy(zero_copy_only=False)))
    values, kind = values.drop_null(), values.type  # what lies under a null is undefined
    if types.is_struct(kind):
        for name, field in sorted(zip((one.name for one in kind), values.flatten(), strict=True)):
            digest.update(name.encode())
            _add_values(digest, field)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        _add_values(digest, pc.list_value_length(values))
        _add_values(digest, values.flatten())
    elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        wide = np.float64 if types.is_floating(kind) else np.int64
        digest.update(values.to_numpy(zero_copy_only=False).astype(wide))
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind):
        _add_values(digest, pc.binary_length(values))
        texts = values.cast(pa.large_binary())
        _, offsets, content = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        digest.update(memoryview(content)[ends[0] : ends[-1]] if content else b"")
    else:  # dates, decimals and other rare kinds
        digest.update(repr(values.to_pylist()).encode())
