"""Agent rollouts as items of the OpenAI Responses API, and the form of a row that is a rollout.

A row holds the request's `input` (at the top or under `responses_create_params`) and the
response's `output` (at the top or under `response`): lists of items of type `message`,
`reasoning`, `function_call` and `function_call_output`. Or both are one list, as the agents SDK's
`to_input_list` has them.

Reference: https://platform.openai.com/docs/api-reference/responses/object
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from hf_rlhf.data.chat_rollouts import find_conversation, has_response_items, read_conversation
from hf_rlhf.data.messages import split_thoughts
from hf_rlhf.data.rollouts import (
    Calls,
    Message,
    Other,
    Output,
    Reasoning,
    Rollout,
    Step,
    rollout_of,
)
from hf_rlhf.data.sources import Row
from hf_rlhf.data.tool_output import parse_json
from hf_rlhf.errors import DataError, did_you_mean

RolloutForm = Literal["responses", "chat"]
_SINGLE_LISTS = ("messages", "input", "items", "conversation")
"""Columns that may hold question and items in one list."""
_COLUMNS = ("responses_create_params", "response", "input", "output")


def rollout_forms(values: Mapping[str, Any]) -> list[RolloutForm]:
    """Return the forms of rollouts that fit a row: items of a response, chat messages."""
    forms: list[RolloutForm] = ["responses"] if _has_response(values) else []
    return forms if find_conversation(values) is None else [*forms, "chat"]


def parse_rollout(
    row: Row, form: RolloutForm | None = None, parse: Callable[[str], Any] = parse_json
) -> Rollout:
    """Return the rollout in a row. Raises DataError (or BadRow), naming row and item, if none is.

    Args:
        row: of one rollout.
        form: the form to read it in; by default the first that fits.
        parse: returns the value of JSON in a text, or the text where it is none.
    """
    form = form or next(iter(rollout_forms(row.values)), "responses")
    if form == "chat" and (conversation := find_conversation(row.values)):
        notes: Counter[str] = Counter()
        items = read_conversation(conversation, parse, notes)
        return rollout_of(row.where, items, row.values, conversation.columns, +notes)
    reader = _Reader(row.where)
    column = _single_list(row.values)
    if column and not row.values.keys() & {"response", "output"}:
        items = reader.read(row.values[column], "output")
        return rollout_of(row.where, items, row.values, (column, *_COLUMNS))
    request = _part(row, "input", "responses_create_params")
    if isinstance(request, str):
        request = [{"role": "user", "content": request}]
    items = reader.read(request, "input")
    items += reader.read(_part(row, "output", "response"), "output")
    return rollout_of(row.where, items, row.values, _COLUMNS)


def _has_response(values: Mapping[str, Any]) -> bool:
    response = values.get("response")
    if isinstance(response, Mapping) and isinstance(response.get("output"), list):
        return True
    if isinstance(values.get("output"), list) and values.get("input") is not None:
        return True
    return bool(_single_list(values))


def _single_list(values: Mapping[str, Any]) -> str:
    return next((name for name in _SINGLE_LISTS if has_response_items(values.get(name))), "")


def _part(row: Row, name: str, parent: str) -> Any:
    holder = row.values.get(parent)
    values = holder if isinstance(holder, dict) and name in holder else row.values
    if name not in values:
        raise DataError(
            f"{row.where}: has neither {parent}.{name} nor {name}{did_you_mean(name, row.values)}. "
            "Expected a rollout: items of the OpenAI Responses API, or `messages`. "
            f"The row's keys: {', '.join(row.values) or 'none'}."
        )
    return values[name]


class _Reader:
    """Reads the items of one row; knows the calls so far, so that outputs find theirs."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.calls = Calls()

    def read(self, items: Any, part: str) -> list[Step]:
        if not isinstance(items, list):
            raise DataError(
                f"{self.where}: field {part!r}: is {type(items).__name__}, expected a list."
            )
        read: list[Step] = []
        for number, item in enumerate(items, start=1):
            where = f"{self.where}: {part} item {number}"
            if not isinstance(item, dict):
                raise DataError(f"{where}: is {type(item).__name__}, expected an object.")
            if _kind(item) == "message":
                read += _message(item, where)
            else:
                read.append(self._item(item, where))
        return read

    def _item(self, item: dict[str, Any], where: str) -> Step:
        kind = _kind(item)
        if kind == "reasoning":
            content = item.get("content") or item.get("summary")
            return Reasoning(_text(content, f"{where}, field 'summary'", joint="\n"))
        if kind == "function_call":
            return self.calls.add(
                _required(item, "call_id", where),
                _required(item, "name", where),
                _text(item.get("arguments"), f"{where}, field 'arguments'"),
            )
        if kind == "function_call_output":
            text = _text(item.get("output"), f"{where}, field 'output'")
            return Output(text, self.calls.answered(_required(item, "call_id", where)))
        return Other(kind, item)


def _kind(item: dict[str, Any]) -> str:
    return str(item.get("type") or ("message" if "role" in item else "without type"))


def _message(item: dict[str, Any], where: str) -> list[Step]:
    """Return a turn of text, behind the thoughts that the agent wrote into it."""
    role = str(item.get("role", "assistant"))
    text = _text(item.get("content"), f"{where}, field 'content'")
    if role != "assistant":
        return [Message(role, text)]
    thought, text = split_thoughts(text)
    return [*([Reasoning(thought)] if thought else []), Message(role, text)]


def _required(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        actual = "empty" if value == "" else type(value).__name__
        raise DataError(
            f"{where}: field {name!r}: is {actual}, expected a text"
            f"{did_you_mean(name, item) if name not in item else ''}."
        )
    return value


def _text(content: Any, where: str, joint: str = "") -> str:
    """Return content as text: a text, null, or a list of parts, whose texts are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = (part.get("text") or part.get("refusal") for part in content)
        return joint.join(text for text in texts if isinstance(text, str))
    raise DataError(f"{where}: is {type(content).__name__}, expected a text or a list of parts.")
