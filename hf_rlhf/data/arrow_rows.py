"""Rows of Arrow tables, with their JSON columns parsed.

`datasets` stores lists of unlike objects (steps of agents, messages) as text in columns of Arrow's
JSON type, and parses it when a row is read. pyarrow does not.
"""

import hashlib
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
    if isinstance(value, list) and hasattr(kind, "value_type"):
        return [_decoded(element, kind.value_type) for element in value]
    return value


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

    It depends on names and values, not on files, chunks, column order and type widths.
    """
    digest = hashlib.blake2b(json.dumps(sorted(rows.column_names)).encode(), digest_size=16)
    for table in rows.with_format("arrow").iter(_BATCH):
        for row in arrow_rows(table):
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode())
    return digest.hexdigest()
