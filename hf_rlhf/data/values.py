"""Kinds of values in a row's columns, in the terms of schemas and error messages."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

TEXT, TRANSCRIPT, TURNS, TURN = "a text", "a transcript", "a list of turns", "a turn"
JSON_TURNS = "a list of turns as JSON text"
FLAG, NUMBER, NULL = "true or false", "a number", "null"

# pandas writes a column of integers with missing values as floats.
BINARY = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
BOOLEANS = {"true": True, "false": False, **{key: bool(n) for key, n in BINARY.items()}}

MAX_DEPTH = 50
"""Limit for nested lists and objects. Arrow writes 64 levels, including the table's own."""

_TRANSCRIPT = re.compile(r"\s*Human:.*(?:\n\n|\r\n\r\n)Assistant:", re.DOTALL)
_JSON_TURNS = re.compile(r'\s*\[\s*\{\s*"')


class PlainText(str):
    """A text that is never parsed as turns or a transcript."""

    __slots__ = ()


def value_kind(value: Any) -> str:
    """Return one of the kinds above, or the name of the value's type.

    A transcript is a text like hh-rlhf's, `Human: ...` with an `Assistant:` after a blank line. A
    text in either form may merely quote a transcript or turns: see `examples`.
    """
    if isinstance(value, PlainText):
        return TEXT
    if isinstance(value, str):
        if _TRANSCRIPT.match(value):
            return TRANSCRIPT
        return JSON_TURNS if _JSON_TURNS.match(value) else TEXT
    if isinstance(value, list) and all(isinstance(turn, Mapping) for turn in value):
        return TURNS
    if isinstance(value, Mapping) and ("role" in value or "from" in value):
        return TURN
    if isinstance(value, bool):
        return FLAG
    return NUMBER if isinstance(value, int | float) else describe_value(value)


def describe_value(value: Any) -> str:
    """Describe a value in a few words for an error message."""
    if value is None:
        return NULL
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...") if value else "an empty text"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def arrow_problem(value: Any, depth: int = 0) -> str:
    """Return why a value does not fit into an Arrow column; "" if it does."""
    if depth > MAX_DEPTH:
        return f"lists and objects are nested more than {MAX_DEPTH} deep"
    if isinstance(value, int) and value.bit_length() > 63:
        return "holds a whole number of more than 64 bits"
    if isinstance(value, Mapping) and not all(isinstance(key, str) for key in value):
        return "an object has a key that is no text"
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(inner, str) or not isinstance(inner, Iterable):
        return ""
    return next(filter(None, (arrow_problem(element, depth + 1) for element in inner)), "")


def without_nulls(value: Any) -> Any:
    """Return a value without the keys that are null, at any depth.

    A table gives every object the keys of all others, as null, and chat templates render them.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def decode_json_text(value: Any) -> Any:
    """Parse JSON text, such as lists in CSV files; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value or "null")
    except (ValueError, RecursionError):
        return value
