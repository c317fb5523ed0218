"""Convert any value to JSON: numbers, text, lists and mappings."""

import dataclasses
import enum
import json
import math
import os
from collections import Counter, deque
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any


def as_json(value: Any) -> Any:
    """Return `value` as pure JSON.

    numpy and torch numbers become Python numbers; NaN and infinities null; enums, dates, paths and
    dataclasses plain values; anything else text.
    """
    return as_json_with_notes(value)[0]


def as_json_with_notes(value: Any) -> tuple[Any, list[str]]:
    """Return `as_json(value)`, and a note for each lost value."""
    lost: Counter[tuple[str, str]] = Counter()
    plain = _plain(value, "", lost)
    return plain, [f"{where}: {count} {loss}" for (where, loss), count in lost.items()]


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON. Raises ValueError, also for deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _plain(value: Any, where: str, lost: Counter[tuple[str, str]]) -> Any:
    if isinstance(value, enum.Enum):
        return _plain(value.value, where, lost)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        lost[where, f"not finite ({float(value)}), written as null"] += 1
        return None
    if isinstance(value, Mapping):
        return {
            str(_plain(key, where, lost)): _plain(entry, f"{where}.{key}".lstrip("."), lost)
            for key, entry in value.items()
        }
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        entries = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_plain(entry, f"{where}[]", lost) for entry in entries]
    return _plain_object(value, where, lost)


def _plain_object(value: Any, where: str, lost: Counter[tuple[str, str]]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _plain(fields, where, lost)
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(getattr(value, "tolist", None)):  # numpy arrays and scalars, torch tensors
        return _plain(value.tolist(), where, lost)
    lost[where, f"of type {type(value).__name__}, written as text"] += 1
    return str(value)
