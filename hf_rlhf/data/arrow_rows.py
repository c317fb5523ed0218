"""Rows of Arrow tables, with their JSON columns parsed.

`datasets` stores lists of unlike objects (steps of agents, messages) as text in columns of Arrow's
JSON type, and parses it when a row is read. pyarrow does not.
"""

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hf_rlhf.data.values import decode_json_text

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

_BATCH = 1000


def arrow_rows(table: "pa.Table | pa.RecordBatch") -> Iterator[dict[str, Any]]:
    """Yield each row of a table. Invalid JSON in a JSON column is left as text.

    A map becomes an object. Raises KeyError if a map has a duplicate key.
    """
    with_json = [field for field in table.schema if "arrow.json" in str(field.type)]
    for values in table.to_pylist(maps_as_pydicts="strict"):
        for field in with_json:
            values[field.name] = _decoded(values[field.name], field.type)
        yield values


def _decoded(value: Any, kind: "pa.DataType") -> Any:
    import pyarrow as pa

    if isinstance(kind, pa.JsonType):
        return decode_json_text(value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and _is_list(kind):
        return [_decoded(element, kind.value_type) for element in value]
    return value


def _is_list(kind: "pa.DataType") -> bool:
    from pyarrow import types

    checks = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(check(kind) for check in checks)


def exact_json(value: Any) -> str:
    """Return JSON text that a column of type `Json` parses back to exactly this value.

    The parser that `datasets` uses gets one fraction in 500 wrong in its last digit, 0.7 among
    them. Raises ValueError for a number that it cannot reproduce.
    """
    if isinstance(value, Mapping):
        pairs = (f"{exact_json(str(key))}: {exact_json(inner)}" for key, inner in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(exact_json, value)) + "]"
    is_fraction = isinstance(value, float)
    return _exact_fraction(value) if is_fraction else json.dumps(value, ensure_ascii=False)


def _exact_fraction(value: float) -> str:
    from datasets.utils.json import ujson_loads

    if not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    for text in _decimals(value):
        try:
            if ujson_loads(text) == value:
                return text
        except ValueError:  # too many digits for the parser
            continue
    raise ValueError(f"{value} has too many digits for a column of type Json")


def _decimals(value: float) -> Iterator[str]:
    """Yield spellings of a fraction: without and with an exponent, and with trailing zeros."""
    yield repr(value)
    sign, numbers, exponent = Decimal(repr(value)).as_tuple()
    for zeros in range(max(4, 20 - len(numbers))):
        digits = "".join(map(str, numbers)) + "0" * zeros
        for place in range(len(digits), 0, -1):
            point = "." if place < len(digits) else ""
            shift = int(exponent) + len(numbers) - place
            yield f"{'-' * sign}{digits[:place]}{point}{digits[place:]}e{shift}"


def rows_digest(rows: "Dataset") -> str:
    """Return a digest of a dataset's content, the same for equal rows on any machine.

    It depends on names and values, not on files, chunks, column order and type widths. It processes
    about a gigabyte of text per second, in batches. xxHash detects accidents, not attacks.
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
    """Hash the null mask of an array, then its other values, level by level."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    digest.update(np.packbits(values.is_valid().to_numpy(zero_copy_only=False)))
    values, kind = values.drop_null(), values.type  # values under a null are undefined
    if types.is_struct(kind):
        for name, field in sorted(
            zip((field.name for field in kind), values.flatten(), strict=True)
        ):
            digest.update(name.encode())
            _add_values(digest, field)
    elif _is_list(kind):
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
