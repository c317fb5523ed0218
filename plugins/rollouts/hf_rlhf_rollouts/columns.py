"""Columns common to all forms: the question, the id, and the rest."""

from collections.abc import Mapping
from typing import Any

QUESTION_KEYS = ("question", "problem", "query", "prompt")
"""Columns of the question; the first that is present counts."""
_ID_KEYS = ("id", "trace_id", "_id", "uid", "uuid", "sample_id", "rollout_id", "example_id")
"""Columns of the row's id; the first that is present counts."""


def first_present(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first present name of `names`; the first name if none is present."""
    return next((name for name in names if values.get(name) is not None), names[0])


def row_id(values: Mapping[str, Any]) -> str:
    """Return a row's own id, if it is a text or a whole number."""
    for key in _ID_KEYS:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def other_fields(values: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a row that are neither used nor null."""
    return {key: value for key, value in values.items() if key not in used and value is not None}
