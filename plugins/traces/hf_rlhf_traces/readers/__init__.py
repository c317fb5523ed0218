"""The forms that traces come in: each has a reader, which tells whether a row fits, and reads it.

A reader is a module with `fits(values) -> bool` and `read(values, where, noted) -> Rough`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import near
from hf_rlhf_traces.readers import chat, responses, search, tagged
from hf_rlhf_traces.readers.messages import MESSAGES
from hf_rlhf_traces.readers.rough import (
    QUESTION_KEYS,
    BadRow,
    Noted,
    Rough,
    first_held,
    kind_of,
)
from hf_rlhf_traces.readers.search import TRACE_KEYS


@dataclass(frozen=True, slots=True)
class Form:
    """How rows of one form are known and read."""

    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], str, Noted], Rough]
    expects: str
    """What a row of it has, for errors."""


FORMS: dict[str, Form] = {
    "search": Form(search.fits, search.read, "`question` and a list `trace` of steps"),
    "responses": Form(
        responses.fits,
        responses.read,
        "`responses_create_params.input` and `response.output`, lists of items",
    ),
    "chat": Form(
        chat.fits,
        chat.read,
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
    held = first_held(values, TRACE_KEYS)
    if values.get(held) is not None:
        kind = kind_of(values[held])
        return f"`{held}` is {kind}, expected {steps}, or a text with tags such as <search>"
    names = (*TRACE_KEYS, *MESSAGES)
    meant = _near(names, values)
    expected = f"{steps} in {_listed(TRACE_KEYS)}, messages in {_listed(MESSAGES)}"
    return f"the row has a question and no trace{meant}. Expected {expected}, or a text with tags"


def without_question(values: Mapping[str, Any], form: str) -> BadRow:
    """Return the error for a row of a form in which no question was found."""
    held = first_held(values, QUESTION_KEYS)
    if form in ("chat", "responses"):
        detail = "no turn of the user before the agent's has a text"
    elif isinstance(values.get(held), list):
        detail = f"no turn of the user in `{held}` has a text"
    elif held in values:
        kind = "null" if values[held] is None else "empty"
        detail = f"the question is {kind}, in `{held}`"
    else:
        meant = _near(QUESTION_KEYS, values)
        read = f"It is read from {_listed(QUESTION_KEYS)}"
        detail = f"the question is missing{meant}. {read}. The row has: {_column_names(values)}"
    return BadRow("no_question", detail)


def _near(names: Sequence[str], values: Mapping[str, Any]) -> str:
    return next(filter(None, (near(name, map(str, values)) for name in names)), "")


def _listed(names: Sequence[str]) -> str:
    *first, last = (f"`{name}`" for name in names)
    return f"{', '.join(first)} or {last}"


def _column_names(values: Mapping[str, Any]) -> str:
    return ", ".join(map(str, list(values)[:12])) or "nothing"
