"""Question and steps as a reader finds them in a row, before they are checked and normalised."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import BadRow
from hf_rlhf_traces.trace import Step

QUESTION_KEYS = ("question", "problem", "query", "prompt")
"""Columns of the question; the first that is present counts."""
ID_KEYS = ("id", "trace_id", "_id", "uid", "uuid", "sample_id", "rollout_id", "example_id")
"""Columns of the row's id; the first that is present counts."""

Noted = Counter[str]
"""Key of `hf_rlhf_traces.outcomes.NOTED` -> how often that was changed or left out."""


@dataclass(slots=True)
class RawTrace:
    """Question and steps as they are in the row."""

    question: str
    steps: list[Step]
    fields: dict[str, Any]
    """The row's other fields."""
    id: str = ""
    """The row's own, or "" where it has none."""


def first_present(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of `names` that is present; the first of all if none is."""
    for name in names:
        if values.get(name) is not None:
            return name
    return names[0]


def row_id(values: Mapping[str, Any]) -> str:
    """Return the id that a row gives itself, if that is a text or a whole number."""
    for key in ID_KEYS:
        value = values.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def other_fields(values: Mapping[str, Any], used: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a row that are neither used nor null."""
    return {key: value for key, value in values.items() if key not in used and value is not None}


def second_question(text: str) -> BadRow:
    """Return the error for a question after the agent's first turn: a trace has only one."""
    return BadRow("user_turn_in_the_middle", f"a question after the agent's first turn: {text:.80}")
