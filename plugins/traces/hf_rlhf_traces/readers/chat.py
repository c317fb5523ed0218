"""Chat messages with tool calls, in the spellings of OpenAI, vLLM, Anthropic and ShareGPT.

`{"messages": [{"role": "user", "content"}, {"role": "assistant", "content", "tool_calls": [...]},
{"role": "tool", "tool_call_id", "content"}, ...]}`. Arguments are JSON text or an object; the older
`function_call` with the role `function` is read, too, and messages as LangGraph dumps them (`type`
`human` and `ai`, calls with `args`), content in the blocks of Anthropic (`hf_rlhf_traces.readers
.blocks`), and ShareGPT's `conversations` of `from` and `value`, in which LLaMA-Factory's
`function_call` and `observation` are a call, written as JSON, and what came back. The samples of
inspect_ai's logs are read alike, and `prompt` with `completion`, as TRL and verifiers have them.

References: https://platform.openai.com/docs/api-reference/chat/create,
https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md
"""

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from hf_rlhf.data import Call, Message, Other, Output, Reasoning, Rollout, Step, split_thoughts
from hf_rlhf_traces.readers import tagged
from hf_rlhf_traces.readers.blocks import (
    call_id,
    is_call,
    is_result,
    is_thought,
    kind,
    returned,
    text_in,
    thought_in,
)
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.messages import (
    ASKED,
    CALLED,
    COMPLETION,
    messages_of,
    placed,
    second_question,
    turns,
)
from hf_rlhf_traces.readers.rollout_steps import steps_of
from hf_rlhf_traces.readers.rough import (
    BadRow,
    Noted,
    Rough,
    first_held,
    kind_of,
    own_id,
    rest,
    text_of,
)

REASONING = ("reasoning_content", "reasoning", "thinking")


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
    for path, message in placed(held, messages):
        reader.take(message, path)
    rollout = reader.rollout(where, values)
    before = messages[: reader.question_at]
    noted["earlier_turns"] += turns(before)
    used = (held, "prompt", "id") if held == COMPLETION else (held, "id")
    fields = rest(values, used)
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
        self.question_at = 0
        """The place of the last message before the agent acts."""
        self.taken = 0

    def take(self, message: Mapping[str, Any], path: str) -> None:
        role = message.get("role")
        if role in ASKED:
            self._ask(str(role), message, path)
        elif role == "assistant":
            self._say(message, path)
        elif role == CALLED:
            self._written_calls(message, path)
        elif role in ("tool", "function"):
            call_name = message.get("tool_call_id")
            self._output(message.get("content"), call_name, f"{path}.content")
        else:
            self.others.append(Other(f"message of {role}", message, len(self.steps)))
        self.taken += 1

    def _ask(self, role: str, message: Mapping[str, Any], path: str) -> None:
        content = message.get("content")
        if role == "user" and isinstance(content, list) and any(map(is_result, content)):
            self._outputs(content, f"{path}.content")
            return
        if role == "user" and not self.calls:
            self._begin_anew()
        text = self._text(content, f"{path}.content")
        if role != "user" and self.calls:
            self.others.append(Other(f"message of {role}", message, len(self.steps)))
            return
        if role != "user":
            self.input.append(Message(role, text))
            return
        if self.calls:
            self._later_turn(text, path)
            return
        self.input.append(Message(role, text))
        self.question_at = self.taken

    def _later_turn(self, text: str, path: str) -> None:
        """Take a turn of the user behind a call: a demand to go on, or a second question."""
        self.steps.append(Message("user", text))
        if self.rollout(path, {}).second_question is not None:
            raise second_question(path, text)
        self.noted["later_turns"] += 1

    def _begin_anew(self) -> None:
        """What was said before the question is no part of the trace."""
        self.input += [step for step in self.steps if isinstance(step, Message)]
        self.steps.clear()
        self.others.clear()

    def _outputs(self, parts: list[Any], path: str) -> None:
        """Take what tools returned in a turn of the user, and what the user writes beside it."""
        for at, part in enumerate(parts):
            text = text_in(part)
            if text is None:
                self._act(part, f"{path}[{at}]")
            elif text.strip():
                self._later_turn(text, f"{path}[{at}]")

    def _say(self, message: Mapping[str, Any], path: str) -> None:
        thought = next((message[key] for key in REASONING if message.get(key)), None)
        if thought is not None:
            self.steps.append(Reasoning(self._text(thought, f"{path}, reasoning")))
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            detail = f"{path}.tool_calls is {kind_of(calls)}, expected a list"
            raise BadRow("malformed", detail)
        if message.get("function_call"):
            calls = [*calls, {"function": message["function_call"]}]
        content = message.get("content")
        if isinstance(content, list):
            # LangChain has calls twice: as parts, and beside them.
            text = [call_id(call) for call in calls if isinstance(call, Mapping)]
            self._parts(content, text, f"{path}.content")
        else:
            self._message(self._text(content, f"{path}.content"))
        for at, call in enumerate(calls):
            self._call(call, f"{path}.tool_calls[{at}]")

    def _parts(self, parts: list[Any], message: list[Any], path: str) -> None:
        """Take the agent's turn part by part, calls that are `told` beside it apart.

        Texts in a row are one: those with citations come in pieces.
        """
        joined = ""
        for at, part in enumerate(parts):
            text = text_in(part)
            if text is not None:
                joined += text
                continue
            self._message(joined)
            joined = ""
            if not (is_call(part) and call_id(part) in message):
                self._act(part, f"{path}[{at}]")
        self._message(joined)

    def _act(self, part: Any, path: str) -> None:
        if is_result(part):
            self._output(part.get("content"), part.get("tool_use_id"), f"{path}.content")
        elif is_call(part):
            self._call(part, path)
        elif is_thought(part):
            self.steps.append(Reasoning(text_of(thought_in(part), path, self.noted)))
        else:
            self._other(part)

    def _message(self, text: str) -> None:
        text = self._without_thoughts(text)
        if text.strip():
            self.steps.append(Message("assistant", text))

    def _without_thoughts(self, text: str) -> str:
        thought, text = split_thoughts(text)
        if thought:
            self.steps.append(Reasoning(thought))
        return text

    def _written_calls(self, message: Mapping[str, Any], path: str) -> None:
        text = self._without_thoughts(self._text(message.get("content"), path)).strip()
        written = json_in(text, self.noted)
        calls = written if isinstance(written, list) else [written]
        if not calls or not all(isinstance(call, Mapping) for call in calls):
            expected = "JSON with `name` and `arguments`, or a list of such"
            start = text[:80] or "nothing"
            raise BadRow("malformed", f"{path} is a call, expected {expected}, found: {start}")
        for at, call in enumerate(calls):
            self._call(call, f"{path}, call {at + 1}")

    def _call(self, call: Any, path: str) -> None:
        if isinstance(call, str):  # as verifiers keeps it
            call = json_in(call, self.noted)
        function = call.get("function") or call if isinstance(call, Mapping) else None
        if isinstance(function, str):  # inspect_ai has the name there
            function = {**call, "name": function}
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise BadRow("malformed", f"{path} names no function")
        # OpenAI's, LangChain's, Anthropic's.
        arguments = function.get(first_held(function, ("arguments", "args", "input")))
        if isinstance(arguments, Mapping):
            # A table fills up what other rows have.
            arguments = {key: value for key, value in arguments.items() if value is not None}
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        number = len(self.calls) + 1
        label = Call(number, str(call_id(call) or f"call {number}"), name, arguments)
        if label.call_id in self.calls:
            raise BadRow("malformed", f"{path}: a second call with id {label.call_id!r}")
        self.calls[label.call_id] = label
        self.waiting.append(label)
        self.steps.append(label)

    def _output(self, content: Any, call_name: Any, path: str) -> None:
        text, others = returned(content, path, self.noted)
        # Without ids, outputs come in the order of the calls.
        call = self.calls.get(str(call_name)) if call_name else next(iter(self.waiting), None)
        if call is not None and call in self.waiting:
            self.waiting.remove(call)
        self.steps.append(Output(text, call))
        for part in others:
            self._other(part)

    def _text(self, content: Any, path: str) -> str:
        if isinstance(content, list):
            return "".join(map(self._text_or_other, content))
        if isinstance(content, Mapping):
            # What a tool returned, not written out.
            return json.dumps(content, ensure_ascii=False)
        return text_of(content, path, self.noted)

    def _text_or_other(self, part: Any) -> str:
        text = text_in(part)
        if text is None:
            self._other(part)
        return text or ""

    def _other(self, part: Any) -> None:
        name = f"part {kind(part) or 'without type'}"
        self.others.append(Other(name, {"part": part}, len(self.steps)))

    def rollout(self, where: str, values: Mapping[str, Any]) -> Rollout:
        return Rollout(where, tuple(self.input), tuple(self.steps), values, tuple(self.others))
