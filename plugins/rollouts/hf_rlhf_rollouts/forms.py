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
        values = _unpacked(values, noted)
        name, values = _recognise(values, form, noted)
        rollout = rollout_forms()[name].read(values, noted)
        if not rollout.question.strip():
            raise _without_question(values)
    except BadRow as error:
        raise BadRow(error.reason, f"{where}: {error}") from error
    return replace(rollout, where=where, form=name)


def _unpacked(values: Mapping[str, Any], noted: Noted) -> Mapping[str, Any]:
    parsed = {
        key: json_in(text, noted)
        for key in _JSON_COLUMNS
        if isinstance(text := values.get(key), str)
    }
    return {**values, **parsed} if parsed else values


def _recognise(
    values: Mapping[str, Any], form: str | None, noted: Noted
) -> tuple[str, Mapping[str, Any]]:
    """Return the single matching form of a row, and the row in that form's columns.

    If none matches, the only other column with the text or messages of a trace is read as
    `response` or `messages`. Raises BadRow, listing the matches or the candidate columns.
    """
    known = {form: rollout_forms()[form]} if form else rollout_forms()
    fitting = [name for name, each in known.items() if each.fits(values)]
    columns = [] if fitting else _trace_columns(values)
    if len(columns) == 1:
        value = values[columns[0]]
        free = MESSAGES if isinstance(value, list) else tagged.TEXTS
        noted[f"column_read.{columns[0]}"] += 1
        renamed = {next(name for name in free if name not in values): value, **values}
        values = {name: value for name, value in renamed.items() if name != columns[0]}
        fitting = [name for name, each in known.items() if each.fits(values)]
    if len(fitting) == 1:
        return fitting[0], values
    if fitting:
        listed = ", ".join(fitting)
        raise BadRow("two_forms", f"{listed} fit this row. Say which: --form {fitting[0]}")
    problem = f"the row has: {_column_names(values)}{_near((*TRACE_KEYS, *MESSAGES), values)}"
    if columns:
        several = " and ".join(f"`{name}`" for name in columns)
        problem = f"{several} have traces: rename one of them to `response` or `messages`"
    elif values.get(column := first_present(values, TRACE_KEYS)) is not None:
        problem = f"`{column}` is {describe_value(values[column])}"
    expected = "; ".join(f"{name}: {each.expects}" for name, each in known.items())
    asks = any(values.get(key) is not None for key in QUESTION_KEYS)
    raise BadRow("no_trace" if asks else "no_form", f"{problem}. Expected {expected}")


def _trace_columns(values: Mapping[str, Any]) -> list[str]:
    """Return the columns of unknown names with the messages of a trace, or a text in tags.

    A text within another, such as the answer alone, does not count; results come first.
    """
    others = {name: value for name, value in values.items() if name not in QUESTION_KEYS}
    texts = {name: value for name, value in others.items() if tagged.acts_in(value)}
    whole = [
        name
        for name, text in texts.items()
        if not any(len(each) > len(text) and text.strip() in each for each in texts.values())
    ]
    complete = [name for name in whole if tagged.has_results(texts[name])]
    talks = [name for name, value in others.items() if find_conversation({"messages": value})]
    return [*(complete or whole), *talks]


def _without_question(values: Mapping[str, Any]) -> BadRow:
    """Return the error for a row without a question."""
    column = first_present(values, QUESTION_KEYS)
    problem = f"the row has: {_column_names(values)}{_near(QUESTION_KEYS, values)}"
    if column in values:
        problem = f"`{column}` is {describe_value(values[column])}"
    place = "in the last turn of the user before the agent's, or in"
    expected = f"Expected a text {place} {', '.join(QUESTION_KEYS)}"
    return BadRow("no_question", f"there is no question: {problem}. {expected}")


def _near(names: Sequence[str], values: Mapping[str, Any]) -> str:
    hints = (did_you_mean(name, map(str, values)) for name in names if name not in values)
    return next(filter(None, hints), "")


def _column_names(values: Mapping[str, Any]) -> str:
    return ", ".join(map(str, list(values)[:12])) or "nothing"
