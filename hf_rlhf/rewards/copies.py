"""Copy the arguments of rewards, so that no reward sees another's modifications."""

from collections.abc import Mapping
from typing import Any

_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


def own_copy(value: Any) -> Any:
    """Copy nested lists, mappings, sets and arrays; other values are shared."""
    if isinstance(value, list | tuple):
        copied = [each if type(each) in _ATOMS else own_copy(each) for each in value]
        return copied if isinstance(value, list) else tuple(copied)
    if isinstance(value, Mapping):
        return {key: own_copy(each) for key, each in value.items()}
    if isinstance(value, set | bytearray) or hasattr(value, "__array__"):
        copy = getattr(value, "clone", None) or getattr(value, "copy", None)  # torch, or numpy
        return value if copy is None else copy()
    return value
