"""The forms of rollout rows: how to recognise and read each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

from msgspec.structs import replace

from hf_rlhf.data import BadRow, describe_value
from hf_rlhf.errors import did_you_mean
from hf_rlhf_rollouts import search, tagged
from hf_rlhf_rollouts.assembly import rollout_of
from hf_rlhf_rollouts.cleaning import Noted, json_in
from hf_rlhf_rollouts.columns import QUESTION_KEYS, first_present, other_fields, row_id
from hf_rlhf_rollouts.conversation import (
    Conversation,
    find_conversation,
    find_items,
    read_conversation,
)
from hf_rlhf_rollouts.search import TRACE_KEYS
from hf_rlhf_rollouts.steps import Rollout

MESSAGES = ("messages", "conversation", "conversations")
COLUMNS = frozenset(
    (*QUESTION_KEYS, *TRACE_KEYS, *MESSAGES, "expected_answer", "response")
    + ("responses_create_params",)
)
"""Columns of the forms, which a row may have only once."""
_JSON_COLUMNS = (
    *("trace", "steps", "trajectory", "messages", "conversation", "input", "output", "response"),
    *("responses_create_params", "full_traces", "fields", "conversations"),
)
"""Columns that may hold JSON as text, because table cells can store lists only in this way."""


@dataclass(frozen=True, slots=True)
class Form:
    """How to recognise and read rows of a form."""

    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], Noted], Rollout]
    """Reads a matching row and counts its changes. Raises BadRow for an unusable row."""
    expects: str
    """Its columns, for errors."""


def _of_conversation(
    find: Callable[[Mapping[str, Any]], Conversation | None], row: Mapping[str, Any], noted: Noted
) -> Rollout:
    conversation = find(row)
    assert conversation is not None
    items = read_conversation(conversation, noted)
    response = row.get("response") if "response" in conversation.columns else None
    details = response if isinstance(response, Mapping) else {}
    fields = other_fields(row, (*conversation.columns, "id"))
    if isinstance(details.get("model"), str):
        fields.setdefault("model", details["model"])
    return replace(rollout_of(items, fields, noted), id=row_id(row) or row_id(details))


_FORMS: dict[str, Form] = {
    "search": Form(
        search.fits,
        search.read,
        "`question` and a list `trace` of steps (in a table, as JSON text)",
    ),
    "responses": Form(
        lambda row: find_items(row) is not None,
        partial(_of_conversation, find_items),
        "`responses_create_params.input` and `response.output`, lists of items",
    ),
    "chat": Form(
        lambda row: find_conversation(row) is not None and not tagged.fits(row),
        partial(_of_conversation, find_conversation),
        "a list `messages` with roles, or `conversations` with `from` and `value`",
    ),
    "tagged": Form(
        tagged.fits,
        tagged.read,
        "`question` and a text (`response`, `output`, ...), or messages, with <search> or "
        "<call_tool> and <answer>",
    ),
}


@cache
def rollout_forms() -> Mapping[str, Form]:
    """Return all forms by name, from this package and the entry points of others."""
    others = entry_points(group="hf_rlhf_rollouts.forms")
    return {**_FORMS, **{entry.name: entry.load() for entry in others}}


def read_rollout(
    values: Mapping[str, Any], where: str, noted: Noted, form: str | None = None
) -> Rollout:
    """Return the rollout in a row. Raises BadRow, with place and reason, for an unusable row.

    Args:
        values: the row; lists may be JSON text, as in the cells of a table.
        where: its place, for errors: `runs.jsonl:3`.
        noted: counts changes and omissions.
        form: the form of the row, a key of `rollout_forms()`; detected by default.
    """
    try:
        texts = {key: values[key] for key in _JSON_COLUMNS if isinstance(values.get(key), str)}
        values = {**values, **{key: json_in(text, noted) for key, text in texts.items()}}
        name = _recognise(values, form)
        rollout = rollout_forms()[name].read(values, noted)
        if not rollout.question.strip():
            raise _without_question(values)
    except BadRow as error:
        raise BadRow(error.reason, f"{where}: {error}") from error
    return replace(rollout, where=where, form=name)


def _recognise(values: Mapping[str, Any], form: str | None) -> str:
    """Return the single matching form of a row. Raises BadRow if none or several match."""
    known = {form: rollout_forms()[form]} if form else rollout_forms()
    fitting = [name for name, each in known.items() if each.fits(values)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        listed = ", ".join(fitting)
        raise BadRow("two_forms", f"{listed} fit this row. Say which: --form {fitting[0]}")
    problem = _has(values, (*TRACE_KEYS, *MESSAGES))
    if values.get(column := first_present(values, TRACE_KEYS)) is not None:
        problem = f"`{column}` is {describe_value(values[column])}"
    expected = "; ".join(f"{name}: {each.expects}" for name, each in known.items())
    asks = any(values.get(key) is not None for key in QUESTION_KEYS)
    raise BadRow("no_trace" if asks else "no_form", f"{problem}. Expected {expected}")


def _without_question(values: Mapping[str, Any]) -> BadRow:
    column = first_present(values, QUESTION_KEYS)
    problem = _has(values, QUESTION_KEYS)
    if column in values:
        problem = f"`{column}` is {describe_value(values[column])}"
    place = "in the last turn of the user before the agent's, or in"
    expected = f"Expected a text {place} {', '.join(QUESTION_KEYS)}"
    return BadRow("no_question", f"there is no question: {problem}. {expected}")


def _has(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the columns of a row, with the one that is most like a missing name."""
    hints = (did_you_mean(name, map(str, values)) for name in names if name not in values)
    listed = ", ".join(map(str, list(values)[:12])) or "nothing"
    return f"the row has: {listed}{next(filter(None, hints), '')}"
