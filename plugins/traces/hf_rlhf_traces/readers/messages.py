"""Where a row has its messages."""

from collections.abc import Mapping, Sequence
from typing import Any

MESSAGES = ("messages", "conversation", "conversations")
ASKED = ("system", "developer", "user")
"""Roles that speak before the agent does."""


_LANGCHAIN = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
"""The type of a message of LangChain and LangGraph -> its role; some write it as the role."""


def messages_of(values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the column with messages and what stands there; ("", ()) without any."""
    for key in MESSAGES:
        held = values.get(key)
        if isinstance(held, list) and not has_items(held):
            messages = [_with_role(one) for one in held]
            if any(isinstance(one, Mapping) and "role" in one for one in messages):
                return key, messages
    return "", ()


def has_items(held: Any) -> bool:
    """Return whether a list has calls as items of their own, as the Responses API has them."""
    return isinstance(held, list) and any(
        isinstance(one, Mapping) and one.get("type") in ("function_call", "function_call_output")
        for one in held
    )


def _with_role(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    named = message.get("role") or message.get("type")
    role = _LANGCHAIN.get(named, named) if isinstance(named, str) else None
    return message if role in (None, message.get("role")) else {**message, "role": role}
