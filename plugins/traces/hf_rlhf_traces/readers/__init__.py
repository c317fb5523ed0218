"""The forms that traces come in: each has a reader, which tells whether a row fits, and reads it.

A reader is a module with `fits(values) -> bool` and `read(values, where, noted) -> Rough`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf_traces.readers import chat, responses, search, smolagents, tagged
from hf_rlhf_traces.readers.rough import QUESTION_KEYS, BadRow, Noted, Rough


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
    if fitting in ([], ["search"]) and smolagents.fits(values):
        raise BadRow("no_form", smolagents.WHY)
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(fitting)
        raise BadRow("two_forms", f"{names} fit this row. Say which: --form {fitting[0]}")
    shown = ", ".join(map(str, list(values)[:12])) or "nothing"
    if any(values.get(key) is not None for key in QUESTION_KEYS):
        raise BadRow("no_trace", f"the row has a question and no trace. It has: {shown}")
    known = "; ".join(f"{name}: {form.expects}" for name, form in FORMS.items())
    raise BadRow("no_form", f"the row has: {shown}. Expected one of {known}")
