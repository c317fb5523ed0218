"""Chat messages with tool calls, in the spelling of OpenAI and of vLLM's reasoning.

`{"messages": [{"role": "user", "content"}, {"role": "assistant", "content", "tool_calls": [...]},
{"role": "tool", "tool_call_id", "content"}, ...]}`. Arguments are JSON text or an object; the older
`function_call` with the role `function` is read, too, and messages as LangGraph dumps them (`type`
`human` and `ai`, calls with `args`).

Reference: https://platform.openai.com/docs/api-reference/chat/create
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

from hf_rlhf.rollouts import Call, Message, Other, Output, Reasoning, Rollout, Step
from hf_rlhf_traces.readers import tagged
from hf_rlhf_traces.readers.messages import ASKED, messages_of
from hf_rlhf_traces.readers.rollout_steps import steps_of
from hf_rlhf_traces.readers.rough import BadRow, Noted, Rough, kind_of, own_id, rest, text_of

REASONING = ("reasoning_content", "reasoning", "thinking")
_THINKS = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has messages of which some call tools, or none holds tags."""
    _, messages = messages_of(values)
    return bool(messages) and not tagged.fits(values)


def read(values: Mapping[str, Any], where: str, noted: Noted) -> Rough:
    """Return question and steps. Raises BadRow, naming the message, for what is none."""
    held, messages = messages_of(values)
    if not messages:
        raise BadRow("no_trace", "there is no list `messages` with roles")
    reader = _Messages(held, noted)
    for at, message in enumerate(messages):
        path = f"{held}[{at}]"
        if not isinstance(message, Mapping):
            raise BadRow("step_not_object", f"{path} is {kind_of(message)}, expected an object")
        reader.take(message, path)
    rollout = reader.rollout(where, values)
    before = [m for m in messages[: reader.asked] if isinstance(m, Mapping)]
    noted["earlier_turns"] += sum(m.get("role") in ("user", "assistant") for m in before)
    fields = rest(values, (held, "id"))
    if before:
        fields.setdefault("input", [dict(message) for message in before])
    return Rough(rollout.question, steps_of(rollout, noted), fields, own_id(values))


class _Messages:
    """Takes messages in order; knows which calls wait for their output."""

    def __init__(self, held: str, noted: Noted) -> None:
        self.held, self.noted = held, noted
        self.input: list[Message] = []
        self.steps: list[Step] = []
        self.others: list[Other] = []
        self.calls: dict[str, Call] = {}
        self.waiting: deque[Call] = deque()
        self.asked = 0
        """The place of the last message before the agent acts."""
        self.taken = 0

    def take(self, message: Mapping[str, Any], path: str) -> None:
        role = message.get("role")
        if role in ASKED:
            self._ask(str(role), message, path)
        elif role == "assistant":
            self._say(message, path)
        elif role in ("tool", "function"):
            self._output(message, path)
        else:
            self.others.append(Other(f"message of {role}", message, len(self.steps)))
        self.taken += 1

    def _ask(self, role: str, message: Mapping[str, Any], path: str) -> None:
        text = self._text(message.get("content"), f"{path}.content")
        if role != "user" and self.calls:
            self.others.append(Other(f"message of {role}", message, len(self.steps)))
            return
        if role != "user":
            self.input.append(Message(role, text))
            return
        if self.calls:
            detail = f"{path}: a question after the agent's first call: {text:.80}"
            raise BadRow("user_turn_in_the_middle", detail)
        # What was said before the question is no part of the trace.
        self.input += [step for step in self.steps if isinstance(step, Message)]
        self.input.append(Message(role, text))
        self.steps.clear()
        self.others.clear()
        self.asked = self.taken

    def _say(self, message: Mapping[str, Any], path: str) -> None:
        thought = next((message[key] for key in REASONING if message.get(key)), None)
        if thought is not None:
            self.steps.append(Reasoning(self._text(thought, f"{path}, reasoning")))
        text = self._text(message.get("content"), f"{path}.content")
        if thinks := _THINKS.match(text):
            self.steps.append(Reasoning(thinks[1].strip()))
            text = text[thinks.end() :]
        if text.strip():
            self.steps.append(Message("assistant", text))
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            detail = f"{path}.tool_calls is {kind_of(calls)}, expected a list"
            raise BadRow("malformed", detail)
        if message.get("function_call"):
            calls = [*calls, {"function": message["function_call"]}]
        for at, call in enumerate(calls):
            self._call(call, f"{path}.tool_calls[{at}]")

    def _call(self, call: Any, path: str) -> None:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise BadRow("malformed", f"{path} names no function")
        arguments = function.get("arguments", function.get("args"))  # LangChain's
        if isinstance(arguments, Mapping):
            # A table fills up what other rows have.
            arguments = {key: one for key, one in arguments.items() if one is not None}
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        number = len(self.calls) + 1
        called = Call(number, str(call.get("id") or f"call {number}"), name, arguments)
        if called.call_id in self.calls:
            raise BadRow("malformed", f"{path}: a second call with id {called.call_id!r}")
        self.calls[called.call_id] = called
        self.waiting.append(called)
        self.steps.append(called)

    def _output(self, message: Mapping[str, Any], path: str) -> None:
        content = message.get("content")
        if isinstance(content, list) and not all(map(_is_part, content)):
            content = json.dumps(content, ensure_ascii=False)
        text = self._text(content, f"{path}.content")
        named = message.get("tool_call_id")
        # Without ids, outputs come in the order of the calls.
        call = self.calls.get(str(named)) if named else next(iter(self.waiting), None)
        if call is not None and call in self.waiting:
            self.waiting.remove(call)
        self.steps.append(Output(text, call))

    def _text(self, content: Any, path: str) -> str:
        if isinstance(content, list):
            return "".join(map(self._part, content))
        if isinstance(content, Mapping):
            # What a tool returned, not written out.
            return json.dumps(content, ensure_ascii=False)
        return text_of(content, path, self.noted)

    def _part(self, part: Any) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            return str(part["text"])
        kind = part.get("type") if isinstance(part, Mapping) else None
        self.others.append(Other(f"part {kind}", {"part": part}, len(self.steps)))
        return ""

    def rollout(self, where: str, values: Mapping[str, Any]) -> Rollout:
        return Rollout(where, tuple(self.input), tuple(self.steps), values, tuple(self.others))


def _is_part(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and "type" in part)
