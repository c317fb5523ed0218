"""Values of any kind as JSON: numbers, text, lists and mappings, and nothing else."""

import dataclasses
import enum
import json
import math
import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any


def as_json(value: Any) -> tuple[Any, list[str]]:
    """Return `value` as pure JSON, and a note for each place where something was lost.

    Numbers of numpy and torch become Python's; NaN and infinities become null; enums, dates,
    paths and dataclasses their plain form; anything else its text.
    """
    lost: Counter[tuple[str, str]] = Counter()
    result = _plain(value, "", lost)
    notes = [f"{where}: {count} {what}" for (where, what), count in lost.items()]
    return result, notes


def parse_json(text: str | bytes) -> Any:
    """Return what JSON of unknown origin holds. Raises ValueError, also for what is too deep."""
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
            str(_plain(key, where, lost)): _plain(item, f"{where}.{key}".lstrip("."), lost)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        items: Iterable[Any] = value
        if isinstance(value, (set, frozenset)):
            items = sorted(value, key=str)
        return [_plain(item, f"{where}[]", lost) for item in items]
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
