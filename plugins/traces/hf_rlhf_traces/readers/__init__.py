"""The forms of rows that hold a trace: how each is recognised, and read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hf_rlhf.data import BadRow, describe_value, rollout_forms
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


def form_of(values: Mapping[str, Any]) -> str:
    """Return the one form that fits a row. Raises BadRow, naming what fits, otherwise."""
    fitting = [name for name, form in FORMS.items() if form.fits(values)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(fitting)
        raise BadRow("two_forms", f"{names} fit this row. Say which: --form {fitting[0]}")
    if any(values.get(key) is not None for key in QUESTION_KEYS):
        raise BadRow("no_trace", f"{_without_trace(values)}. It has: {_column_names(values)}")
    known = "; ".join(f"{name}: {form.expects}" for name, form in FORMS.items())
    raise BadRow("no_form", f"the row has: {_column_names(values)}. Expected one of {known}")


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
