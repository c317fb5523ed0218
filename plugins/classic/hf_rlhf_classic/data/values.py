"""What a value of a row is, said in the words of the schemas and of the errors."""

import json
import re
from collections.abc import Mapping
from typing import Any

TEXT, TRANSCRIPT, TURNS, TURN = "a text", "a transcript", "a list of turns", "a turn"
FLAG, NUMBER, NOTHING = "true or false", "a number", "null"

_TRANSCRIPT = re.compile(r"\s*Human:.*(?:\n\n|\r\n\r\n)Assistant:", re.DOTALL)
_JSON_TURNS = re.compile(r'\s*\[\s*\{\s*"(?:role|from|content|value)"\s*:')


class BadRow(Exception):
    """A row that can be read and not be used: the reason to count, and the whole story."""

    def __init__(self, reason: str, story: str) -> None:
        self.reason = reason
        super().__init__(story)


def kind_of(value: Any) -> str:
    """Return what a value is: one of the kinds above, or the name of its type.

    A transcript is text like hh-rlhf's, `Human: ...` with an `Assistant:` after a blank line.
    """
    if isinstance(value, str):
        if _TRANSCRIPT.match(value):
            return TRANSCRIPT
        return TURNS if _JSON_TURNS.match(value) else TEXT
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return TURNS
    if isinstance(value, Mapping) and ("role" in value or "from" in value):
        return TURN
    if isinstance(value, bool):
        return FLAG
    return NUMBER if isinstance(value, (int, float)) else said(value)


def unpacked(value: Any) -> Any:
    """Return what JSON text holds, as a table without lists has them; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "null")
    except (ValueError, RecursionError):
        return value


def said(value: Any) -> str:
    """Say what a value is, short enough for a message."""
    if value is None:
        return NOTHING
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...") if value else "an empty text"
    return f"a {type(value).__name__}"
