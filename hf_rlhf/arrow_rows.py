"""Rows of Arrow tables, with what their columns of JSON hold.

`datasets` keeps lists of unlike objects, as agents' steps and messages are, as JSON texts in
columns of Arrow's JSON type, and parses them when a row is read. pyarrow does not.
"""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Decode = Callable[[Any], Any]


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
