"""Where a row has its messages."""

from collections.abc import Mapping, Sequence
from typing import Any

MESSAGES = ("messages", "conversation", "conversations")
ASKED = ("system", "developer", "user")
"""Roles that speak before the agent does."""


def messages_of(values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the column with messages and what stands there; ("", ()) without any."""
    for key in MESSAGES:
        held = values.get(key)
        if isinstance(held, list) and any(isinstance(m, Mapping) and "role" in m for m in held):
            return key, held
    return "", ()
