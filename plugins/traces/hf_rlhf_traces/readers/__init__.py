"""The forms of rows that hold a trace: how each is recognised, and read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hf_rlhf.data import BadRow, describe_value, find_conversation, rollout_forms
from hf_rlhf.errors import did_you_mean
from hf_rlhf_traces.readers import search, tagged
from hf_rlhf_traces.readers.raw_trace import QUESTION_KEYS, Noted, RawTrace, first_present
from hf_rlhf_traces.readers.rollouts import read_rollout
from hf_rlhf_traces.readers.search import TRACE_KEYS

MESSAGES = ("messages", "conversation", "conversations")


@dataclass(frozen=True, slots=True)
class Form:
    """How rows of one form are recognised and read."""

    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], str, Noted], RawTrace]
    expects: str
    """Its columns, for errors."""


FORMS: dict[str, Form] = {
    "search": Form(search.fits, search.read, "`question` and a list `trace` of steps"),
    "responses": Form(
        lambda values: "responses" in rollout_forms(values),
        partial(read_rollout, "responses"),
        "`responses_create_params.input` and `response.output`, lists of items",
    ),
    "chat": Form(
        lambda values: "chat" in rollout_forms(values) and not tagged.fits(values),
        partial(read_rollout, "chat"),
        "a list `messages` with roles, or `conversations` with `from` and `value`",
    ),
    "tagged": Form(
        tagged.fits,
        tagged.read,
        "`question` and a text (`response`, `output`, ...), or messages, with <search> or "
        "<call_tool> and <answer>",
    ),
}
"""Name -> form. `--form` takes these names."""


def recognise(
    values: Mapping[str, Any], form: str | None, noted: Noted
) -> tuple[str, Mapping[str, Any]]:
    """Return the one form that fits a row, and the row as that form reads it.

    Where none fits, the only other column with the text or messages of a trace is read as
    `response` or `messages`. Raises BadRow, naming what fits or what such columns there are.
    """
    names = [form] if form else list(FORMS)
    fitting = [name for name in names if FORMS[name].fits(values)]
    columns = [] if fitting else _trace_columns(values)
    if len(columns) == 1:
        column, free = (
            columns[0],
            MESSAGES if isinstance(values[columns[0]], list) else tagged.TEXTS,
        )
        noted[f"column_read.{column}"] += 1
        renamed = {next(name for name in free if name not in values): values[column], **values}
        values = {name: value for name, value in renamed.items() if name != column}
        fitting = [name for name in names if FORMS[name].fits(values)]
    if form or len(fitting) == 1:
        return form or fitting[0], values
    if fitting:
        listed = ", ".join(fitting)
        raise BadRow("two_forms", f"{listed} fit this row. Say which: --form {fitting[0]}")
    has = f"has: {_column_names(values)}"
    if columns:
        several = " and ".join(f"`{name}`" for name in columns)
        has = f"has traces in {several}: rename one of them to `response` or `messages`"
    if any(values.get(key) is not None for key in QUESTION_KEYS):
        raise BadRow("no_trace", f"{_without_trace(values)}. It {has}")
    known = "; ".join(f"{name}: {form.expects}" for name, form in FORMS.items())
    raise BadRow("no_form", f"the row {has}. Expected one of {known}")


def _trace_columns(values: Mapping[str, Any]) -> list[str]:
    """Return the columns of unknown names that have the messages of a trace, or a text in tags.

    A text that is part of another, such as the answer alone, is none; those with results go first.
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


def _without_trace(values: Mapping[str, Any]) -> str:
    steps = "a list of steps (in a table, as JSON text)"
    column = first_present(values, TRACE_KEYS)
    if values.get(column) is not None:
        kind = describe_value(values[column])
        return f"`{column}` is {kind}, expected {steps}, or a text with tags such as <search>"
    names = (*TRACE_KEYS, *MESSAGES)
    meant = _near(names, values)
    expected = f"{steps} in {_listed(TRACE_KEYS)}, messages in {_listed(MESSAGES)}"
    return f"the row has a question and no trace{meant}. Expected {expected}, or a text with tags"


def without_question(values: Mapping[str, Any], form: str) -> BadRow:
    """Return the error for a row of a form in which no question was found."""
    column = first_present(values, QUESTION_KEYS)
    if form in ("chat", "responses"):
        detail = "no turn of the user before the agent's has a text"
    elif isinstance(values.get(column), list):
        detail = f"no turn of the user in `{column}` has a text"
    elif column in values:
        kind = "null" if values[column] is None else "empty"
        detail = f"the question is {kind}, in `{column}`"
    else:
        meant = _near(QUESTION_KEYS, values)
        read = f"It is read from {_listed(QUESTION_KEYS)}"
        detail = f"the question is missing{meant}. {read}. The row has: {_column_names(values)}"
    return BadRow("no_question", detail)


def _near(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return next(filter(None, (did_you_mean(name, map(str, values)) for name in names)), "")


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} or {last}"


def _column_names(values: Mapping[str, Any]) -> str:
    return ", ".join(map(str, list(values)[:12])) or "nothing"
