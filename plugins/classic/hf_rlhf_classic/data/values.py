"""What a value of a row is, said in the words of the schemas and of the errors."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

TEXT, TRANSCRIPT, TURNS, TURN = "a text", "a transcript", "a list of turns", "a turn"
FLAG, NUMBER, NOTHING = "true or false", "a number", "null"

DEEPEST = 50
"""Of lists and objects within each other; Arrow writes 64 levels, of which some are the table's."""

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


def unfit_for_a_table(value: Any, depth: int = 0) -> str:
    """Return why a value has no place in a column of Arrow; "" if it has one."""
    if depth > DEEPEST:
        return f"lists and objects lie more than {DEEPEST} deep within each other"
    if isinstance(value, int) and value.bit_length() > 63:
        return "holds a whole number of more than 64 bits"
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(inner, str) or not isinstance(inner, Iterable):
        return ""
    return next(filter(None, (unfit_for_a_table(one, depth + 1) for one in inner)), "")


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
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    if isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...") if value else "an empty text"
    return f"a {type(value).__name__}"
