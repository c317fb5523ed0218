"""What a reader makes of a row, before it is settled whether that is a trace to learn from."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.trace import Step

QUESTION_KEYS = ("question", "problem", "query", "prompt")
"""Where a row may have its question; the first that is there."""
ID_KEYS = ("id", "trace_id", "_id", "uid", "uuid", "sample_id", "rollout_id", "example_id")
"""Where a row may have its own id; the first that is there."""

Noted = Counter[str]
"""What was changed or left out, by a key of `hf_rlhf_traces.outcomes.NOTED`, and how often."""


class BadRow(DataError):
    """A row is no trace. `reason` is a key of `hf_rlhf_traces.outcomes.REJECTED`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class Rough:
    """Question and steps as they stand in the row."""

    question: str
    steps: list[Step]
    fields: dict[str, Any]
    """What else the row holds."""
    id: str = ""
    """The row's own, or "" where it has none."""


def text_of(value: Any, path: str, noted: Noted) -> str:
    """Return a content as text: numbers are written out and counted, nothing is "".

    Raises BadRow, with the path in the row, for a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        noted["numbers_as_text"] += 1
        return json.dumps(value)
    raise BadRow("content_not_text", f"{path} is {kind_of(value)}, expected a text")


def first_held(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of `names` that is there; the first of all where none is."""
    for name in names:
        if values.get(name) is not None:
            return name
    return names[0]


def own_id(values: Mapping[str, Any]) -> str:
    """Return the id that a row gives itself, if that is a text or a whole number."""
    for key in ID_KEYS:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def rest(values: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a row but the used ones, and but those that hold nothing."""
    return {key: value for key, value in values.items() if key not in used and value is not None}


def kind_of(value: Any) -> str:
    """Return what a value is, in the words of JSON."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    if value is None:
        return "null"
    return next((words for kind, words in names.items() if isinstance(value, kind)), "a number")
