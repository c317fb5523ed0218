"""The plain values that a run file holds: text, numbers, true, false, null, lists and mappings."""

import contextlib
import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import Problem

KeyPath = tuple[str | int, ...]
"""The keys and indices that lead to a value."""

MAX_DEPTH = 20


def leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield each single value within `value`, with the keys and indices that lead to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def dotted(path: Sequence[str | int]) -> str:
    """Return a key path as it is written on a command line."""
    return ".".join(map(str, path))


def from_python(value: Any, name: str) -> tuple[Any, list[Problem]]:
    """Convert a value from Python; what YAML cannot hold becomes a problem, with its path."""
    problems: list[Problem] = []
    return _from_python(value, (), name, problems), problems


def join_surrogates(text: str) -> str:
    """Join the halves in which JSON escapes write a character beyond U+FFFF."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("it holds half of a character (a lone surrogate).") from None


def _from_python(value: Any, path: KeyPath, name: str, problems: list[Problem]) -> Any:
    """Return `value` in the types that YAML has; what it cannot hold goes to `problems`."""
    if len(path) > MAX_DEPTH:
        problems.append(Problem(name, f"values are nested more than {MAX_DEPTH} deep."))
        return None
    where = f"{name} {dotted(path)}".rstrip()
    if isinstance(value, Mapping):
        keys = [key for key in value if isinstance(key, str)]
        wrong = [key for key in value if not isinstance(key, str)]
        problems += [Problem(where, f"the key {key!r} is not text.") for key in wrong]
        return {key: _from_python(value[key], (*path, key), name, problems) for key in keys}
    if isinstance(value, list | tuple):
        return [_from_python(item, (*path, i), name, problems) for i, item in enumerate(value)]
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Path):
        return str(value)
    finite = isinstance(value, float) and math.isfinite(value)
    if value is None or isinstance(value, bool | int) or finite:
        return value
    with contextlib.suppress(ValueError):
        if isinstance(value, str):
            return join_surrogates(value)
    what = f"{value!r} cannot be written in a run file."
    fix = "Give text, finite numbers, true, false, null, lists or mappings."
    problems.append(Problem(where, what, fix))
    return None
