"""Read rollouts as chat messages with tool calls, or as items of the OpenAI Responses API.

`{"messages": [{"role": "user", "content"}, {"role": "assistant", "content", "tool_calls": [...]},
{"role": "tool", "tool_call_id", "content"}, ...]}`, as in OpenAI and vLLM. Arguments are JSON text
or an object. The older `function_call` with the role `function` is accepted too. So are LangGraph's
dumps (`type` `human` and `ai`, calls with `args`), content in Anthropic's blocks (`content`) and
the samples of inspect_ai's logs. ShareGPT's `conversations` have `from` and `value`;
LLaMA-Factory's `function_call` in them is a call as JSON, and `observation` its output. TRL and
verifiers write `prompt` with `completion`.

Items are of type `message`, `reasoning`, `function_call` and `function_call_output`. They are the
request's `input` (at the top or under `responses_create_params`) and the response's `output` (at
the top or under `response`), or a single list, as in the agents SDK's `to_input_list`.

References: https://platform.openai.com/docs/api-reference/responses/object,
https://platform.openai.com/docs/api-reference/chat/create,
https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import (
    ROLES,
    TOOL_ROLES,
    BadRow,
    call_id,
    describe_value,
    is_thought,
    part_type,
    split_thoughts,
    text_in,
    thought_in,
)
from hf_rlhf_rollouts.assembly import Calls, Item, Message, Output
from hf_rlhf_rollouts.cleaning import Noted, json_in
from hf_rlhf_rollouts.content import is_call, is_tool_result, scalar_text, tool_result_text
from hf_rlhf_rollouts.steps import Reasoning, Unknown

_COLUMNS = ("messages", "conversation", "conversations")
_SINGLE_LISTS = ("messages", "input", "items", "conversation")
"""Columns that may contain question and items in a single list."""
_RESPONSE = ("responses_create_params", "response", "input", "output")
_PROMPTING = ("system", "developer", "user")
"""Roles before the agent's first turn."""
_ROLES = {name: role for name, role in {**ROLES, **TOOL_ROLES}.items() if name not in _PROMPTING}
"""Spelling of a role -> the role; roles before the agent keep their own name."""
_SHAREGPT = {*_ROLES, *_PROMPTING, "assistant", "tool", "function_call"}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_ARGUMENTS = ("arguments", "args", "input")
"""OpenAI's, LangChain's and Anthropic's."""


@dataclass(frozen=True)
class Conversation:
    """The messages of a row, with the roles system, developer, user, assistant, tool and others."""

    name: str
    """Names of the columns, for errors."""
    columns: tuple[str, ...]
    """The columns of the messages, and related columns."""
    messages: Sequence[Any]

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each message with its path. Raises BadRow for a message that is no object."""
        for number, message in enumerate(self.messages):
            path = f"{self.name}[{number}]"
            if not isinstance(message, Mapping):
                problem = f"{path} is {describe_value(message)}, expected an object"
                raise BadRow("step_not_object", problem)
            yield path, message


def find_items(values: Mapping[str, Any]) -> Conversation | None:
    """Return the items of request and response in a row; None without items."""
    lists = (name for name in _SINGLE_LISTS if has_response_items(values.get(name)))
    if (column := next(lists, "")) and not values.keys() & {"response", "output"}:
        return Conversation(column, (column, *_RESPONSE), values[column])
    request, response = (
        values[holder] if isinstance(values.get(holder), Mapping) else {}
        for holder in _RESPONSE[:2]
    )
    asked, done = request.get("input", values.get("input")), response.get("output")
    if done is None and asked is not None:
        done = values.get("output")
    if not isinstance(done, list):
        return None
    if isinstance(asked, str):
        asked = [{"role": "user", "content": asked}]
    items = [*(asked if isinstance(asked, list) else ()), *done]
    return Conversation("input + output", _RESPONSE, items)


def find_conversation(values: Mapping[str, Any]) -> Conversation | None:
    """Return the messages of a row, with normalised roles; None without messages."""
    for column in _COLUMNS:
        value = values.get(column)
        if isinstance(value, list) and not has_response_items(value):
            messages = [_with_role(message) for message in value]
            if any(map(_has_role, messages)):
                return Conversation(column, (column,), messages)
    prompt, completion = values.get("prompt"), values.get("completion")
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(prompt, list) and isinstance(completion, list):
        messages = [_with_role(message) for message in (*prompt, *completion)]
        if messages and all(map(_has_role, messages)):
            return Conversation("prompt + completion", ("prompt", "completion"), messages)
    return None


def has_response_items(value: Any) -> bool:
    """Return whether a list has calls as separate items, as in the Responses API."""
    kinds = ("function_call", "function_call_output")
    return isinstance(value, list) and any(
        isinstance(message, Mapping) and message.get("type") in kinds for message in value
    )


def _has_role(message: Any) -> bool:
    return isinstance(message, Mapping) and "role" in message


def _with_role(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    name = message.get("role") or message.get("from") or message.get("type")
    role = _ROLES.get(name, name) if isinstance(name, str) else None
    if role is None or role == message.get("role"):
        return message
    if "value" in message and message.get("from") == name and name in _SHAREGPT:
        rest = {key: value for key, value in message.items() if key not in ("from", "value")}
        return {**rest, "role": role, "content": message["value"]}
    return {**message, "role": role}


def read_conversation(conversation: Conversation, noted: Noted) -> list[Item]:
    """Return the items of messages, in order. Raises BadRow, with the path of the message."""
    reader = _Reader(noted)
    for path, message in conversation:
        kind = part_type(message)
        if kind == "message" or "role" in message:
            reader.add(message if "role" in message else {**message, "role": "assistant"}, path)
        elif is_call(message) or is_thought(message) or is_tool_result(message):
            reader.add_part(message, path)
        else:
            reader.items.append(Unknown(kind or "without type", dict(message)))
    return reader.items


class _Reader:
    """Reads messages in order and tracks the calls that wait for their output."""

    def __init__(self, noted: Noted) -> None:
        self.noted = noted
        self.items: list[Item] = []
        self.calls = Calls()

    def add(self, message: Mapping[str, Any], path: str) -> None:
        role, content = message.get("role"), message.get("content")
        if role == "user" and isinstance(content, list) and any(map(is_tool_result, content)):
            self._tool_results(content, f"{path}.content")
        elif role == "user" or (role in _PROMPTING and not self.calls.number):
            text, others = self._text(content, f"{path}.content")
            self.items += [Message(str(role), text), *others]
        elif role == "assistant":
            self._agent_turn(message, path)
        elif role == "function_call":
            self._written_calls(content, path)
        elif role in ("tool", "function"):
            self._output(content, message.get("tool_call_id"), f"{path}.content")
        else:
            self.items.append(Unknown(f"message of {role}", dict(message)))

    def _tool_results(self, parts: list[Any], path: str) -> None:
        """Add the tool results in a user turn, and the user's own text."""
        for number, part in enumerate(parts):
            text = text_in(part)
            if text is None:
                self.add_part(part, f"{path}[{number}]")
            elif text.strip():
                self.items.append(Message("user", text))

    def _agent_turn(self, message: Mapping[str, Any], path: str) -> None:
        thought = next((message[key] for key in _REASONING if message.get(key)), None)
        if thought is not None:
            text, others = self._text(thought, f"{path}, reasoning")
            self.items += [*others, Reasoning(text)]
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            problem = f"{path}.tool_calls is {describe_value(calls)}, expected a list"
            raise BadRow("malformed", problem)
        if message.get("function_call"):
            calls = [*calls, {"function": message["function_call"]}]
        content = message.get("content")
        if isinstance(content, list):
            # LangChain repeats calls: as parts, and in a field of their own.
            ids = [call_id(call) for call in calls if isinstance(call, Mapping)]
            self._parts(content, ids, f"{path}.content")
        else:
            self._agent_text(self._text(content, f"{path}.content")[0])
        for number, call in enumerate(calls):
            self._call(call, f"{path}.tool_calls[{number}]")

    def _parts(self, parts: list[Any], ids: list[Any], path: str) -> None:
        """Add the agent's turn part by part, without calls that are in `ids`.

        Consecutive texts are joined, because texts with citations come in pieces.
        """
        joined = ""
        for number, part in enumerate(parts):
            text = text_in(part)
            if text is not None:
                joined += text
                continue
            self._agent_text(joined)
            joined = ""
            if not (is_call(part) and call_id(part) in ids):
                self.add_part(part, f"{path}[{number}]")
        self._agent_text(joined)

    def add_part(self, part: Any, path: str) -> None:
        if is_tool_result(part):
            key = "output" if "output" in part else "content"
            name = part.get("tool_use_id") or part.get("call_id")
            self._output(part.get(key), name, f"{path}.{key}")
        elif is_call(part):
            self._call(part, path)
        elif is_thought(part):
            self.items.append(Reasoning(scalar_text(thought_in(part), path, self.noted)))
        else:
            self.items.append(_other_part(part))

    def _agent_text(self, text: str) -> None:
        text = self._without_thoughts(text)
        if text.strip():
            self.items.append(Message("assistant", text))

    def _without_thoughts(self, text: str) -> str:
        thought, text = split_thoughts(text)
        if thought:
            self.items.append(Reasoning(thought))
        return text

    def _written_calls(self, content: Any, path: str) -> None:
        """Add calls that are the content of a message, as JSON."""
        text = self._without_thoughts(self._text(content, path)[0]).strip()
        value = json_in(text, self.noted)
        calls = value if isinstance(value, list) else [value]
        if not calls or not all(isinstance(call, Mapping) for call in calls):
            expected = "JSON with `name` and `arguments`, or a list of such"
            actual = text[:80] or "nothing"
            raise BadRow("malformed", f"{path} is a call, expected {expected}, found: {actual}")
        for number, call in enumerate(calls, start=1):
            self._call(call, f"{path}, call {number}")

    def _call(self, call: Any, path: str) -> None:
        if isinstance(call, str):  # verifiers
            call = json_in(call, self.noted)
        function = call.get("function") or call if isinstance(call, Mapping) else None
        if isinstance(function, str):  # inspect_ai's key of the name
            function = {**call, "name": function}
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise BadRow("malformed", f"{path} names no function")
        self.items.append(self.calls.add(str(call_id(call) or ""), name, _arguments(function)))

    def _output(self, content: Any, name: Any, path: str) -> None:
        text, others = tool_result_text(content, path, self.noted)
        call = self.calls.answered(str(name) if name else None)
        self.items += [Output(text, call), *map(_other_part, others)]

    def _text(self, content: Any, path: str) -> tuple[str, list[Unknown]]:
        """Return a content as text, and its parts without text."""
        if isinstance(content, list):
            texts = [text for part in content if (text := text_in(part)) is not None]
            return "".join(texts), [_other_part(part) for part in content if text_in(part) is None]
        if isinstance(content, Mapping):
            return json.dumps(content, ensure_ascii=False), []
        return scalar_text(content, path, self.noted), []


def _arguments(function: Mapping[str, Any]) -> str:
    value: Any = next((function[key] for key in _ARGUMENTS if function.get(key) is not None), {})
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):  # a table gives every object the keys of all others
        value = {key: inner for key, inner in value.items() if inner is not None}
    return json.dumps(value or {}, ensure_ascii=False)


def _other_part(part: Any) -> Unknown:
    return Unknown(f"part {part_type(part) or 'without type'}", {"part": part})
