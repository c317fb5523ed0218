"""Agent rollouts in the OpenAI Responses form, one per row, as typed steps.

A row holds the request's `input` (at the top or under `responses_create_params`) and the
response's `output` (at the top or under `response`): lists of items of type `message`,
`reasoning`, `function_call` and `function_call_output`. Everything else of the row stays readable
in `Rollout.fields`. Items of other types stay as they are in `Rollout.others`, never guessed at.

Reference: https://platform.openai.com/docs/api-reference/responses/object
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from hf_rlhf.data.messages import split_thoughts
from hf_rlhf.data.sources import Row, near
from hf_rlhf.errors import DataError

_ANSWER_TOOL = re.compile(r"(^|_)(submit|final|answer)(_|$)", re.IGNORECASE)
_FRAMING = re.compile(r"(?:^|\n)[ \t]*Question:[ \t]*\n", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """A turn of text."""

    role: str
    text: str


@dataclass(frozen=True)
class Reasoning:
    """What the agent thought, as far as the provider shows it: `text` is "" where it is hidden."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call. `number` counts the rollout's calls from 1, parallel ones in their order."""

    number: int
    call_id: str
    name: str
    arguments: str
    """JSON as the agent wrote it, which need not parse."""


@dataclass(frozen=True)
class Output:
    """What a tool returned, with the call that it answers (None where there is no such call)."""

    text: str
    call: Call | None


Step = Message | Reasoning | Call | Output


@dataclass(frozen=True)
class Other:
    """An item of a type that is not read here, as it is."""

    kind: str
    item: Mapping[str, Any]
    before: int
    """How many of the rollout's steps stand before it."""


@dataclass(frozen=True)
class Rollout:
    """One agent run: what it was asked, and what it did, in order."""

    where: str
    input: tuple[Message, ...]
    """System prompts and the conversation up to the question: the user's last turn here."""
    steps: tuple[Step, ...]
    """What follows the question. A turn of the user among them is one of `later_turns`."""
    fields: Mapping[str, Any]
    """The whole row, for what else it records: rewards, judgements, expected answers."""
    others: tuple[Other, ...] = ()
    """Items of types that are not read here, in order."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """How many items there are of each type that is not read here."""
        return dict(Counter(other.kind for other in self.others))

    @property
    def question(self) -> str:
        """The last of the user's turns in `input`, from behind a line `Question:` if it has one."""
        turns = [message.text for message in self.input if message.role == "user"]
        return _FRAMING.split(turns[-1])[-1].strip() if turns else ""

    @property
    def earlier_turns(self) -> tuple[Message, ...]:
        """What user and agent said to each other before the question."""
        return tuple(turn for turn in self.input if turn.role in ("user", "assistant"))[:-1]

    @property
    def later_turns(self) -> tuple[Message, ...]:
        """What the user said after the first call, such as a demand for the final answer."""
        return tuple(s for s in self.steps if isinstance(s, Message) and s.role == "user")

    @property
    def second_question(self) -> Message | None:
        """The first of the later turns that follows an answer: the next answer is to that turn."""
        answered = False
        for step in self.steps:
            if isinstance(step, Message) and step.role == "user":
                if answered:
                    return step
            elif isinstance(step, Message):
                answered = answered or (step.role == "assistant" and bool(step.text.strip()))
            elif not isinstance(step, Reasoning):
                call = step.call if isinstance(step, Output) else step
                answered = call is not None and bool(_ANSWER_TOOL.search(call.name))
        return None

    @property
    def reasoning(self) -> str:
        """All thoughts shown, and what the agent said between its tool calls, in order."""
        last = max((n for n, step in enumerate(self.steps) if isinstance(step, Call)), default=0)
        texts = [
            step.text
            for number, step in enumerate(self.steps)
            if isinstance(step, Reasoning)
            or (isinstance(step, Message) and step.role == "assistant" and number < last)
        ]
        return "\n\n".join(text.strip() for text in texts if text.strip())

    @property
    def answer_call(self) -> Call | None:
        """The last call, if it hands in the answer: its name says submit, final or answer."""
        calls = [step for step in self.steps if isinstance(step, Call)]
        return calls[-1] if calls and _ANSWER_TOOL.search(calls[-1].name) else None

    @property
    def answer(self) -> str:
        """What the agent answered: its last message behind all tool output, or what it handed in.

        "" if it stopped without either.
        """
        for step in reversed(self.steps):
            if isinstance(step, Message) and step.role == "assistant" and step.text.strip():
                return step.text
            if isinstance(step, Output) and step.call is not self.answer_call:
                break
        return _longest_text(self.answer_call.arguments) if self.answer_call else ""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What the tools returned; the echo of a handed-in answer is not tool output."""
        return tuple(
            step
            for step in self.steps
            if isinstance(step, Output) and (step.call is None or step.call is not self.answer_call)
        )


def rollouts(rows: Iterable[Row]) -> Iterator[Rollout]:
    """Yield the rollout in each row. Raise DataError, naming row and item, if it is not one."""
    return (parse_rollout(row) for row in rows)


def parse_rollout(row: Row) -> Rollout:
    """Return the rollout in a row. Raise DataError, naming row and item, if it is not one."""
    reader = _Reader(row.where)
    request = _part(row, "input", "responses_create_params")
    if isinstance(request, str):
        request = [{"role": "user", "content": request}]
    before = reader.read(request, "input")
    after = reader.read(_part(row, "output", "response"), "output")
    return rollout_of(row.where, [*before, *after], row.values)


def rollout_of(where: str, items: Sequence[Step | Other], fields: Mapping[str, Any]) -> Rollout:
    """Return the rollout that items are, parted at the question.

    The question is the last turn of the user before the first call. What was said before it, and
    what any system prompt says, is `input`; what follows is steps, also where it stands in a
    request that carries a conversation on. Without a call, it is the user's last turn.
    """
    acts = next((n for n, item in enumerate(items) if isinstance(item, Call)), len(items))
    begin = (
        max((n for n, item in enumerate(items[:acts]) if _is_from(item, "user")), default=-1) + 1
    )
    turns = [item for item in items[:begin] if isinstance(item, Message)]
    steps: list[Step] = []
    others: list[Other] = []
    for number, item in enumerate(items[begin:], start=begin):
        if isinstance(item, Other):
            others.append(replace(item, before=len(steps)))
        elif number < acts and _is_from(item, "system", "developer"):
            turns.append(item)
        else:
            steps.append(item)
    return Rollout(where, tuple(turns), tuple(steps), fields, tuple(others))


def _is_from(item: Step | Other, *roles: str) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in roles


def _part(row: Row, name: str, parent: str) -> Any:
    holder = row.values.get(parent)
    values = holder if isinstance(holder, dict) and name in holder else row.values
    if name not in values:
        raise DataError(
            f"{row.where}: has neither {parent}.{name} nor {name}{near(name, row.values)}. "
            "Expected a rollout in the OpenAI Responses form. "
            f"The row's keys: {', '.join(row.values) or 'none'}."
        )
    return values[name]


class _Reader:
    """Reads the items of one row; knows the calls so far, so that outputs find theirs."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.calls: dict[str, Call] = {}

    def read(self, items: Any, part: str) -> list[Step | Other]:
        if not isinstance(items, list):
            raise DataError(
                f"{self.where}: field {part!r}: is {type(items).__name__}, expected a list."
            )
        read: list[Step | Other] = []
        for number, item in enumerate(items, start=1):
            where = f"{self.where}: {part} item {number}"
            if not isinstance(item, dict):
                raise DataError(f"{where}: is {type(item).__name__}, expected an object.")
            if _kind(item) == "message":
                read += _message(item, where)
            else:
                read.append(self._item(item, where))
        return read

    def _item(self, item: dict[str, Any], where: str) -> Step | Other:
        kind = _kind(item)
        if kind == "reasoning":
            content = item.get("content") or item.get("summary")
            return Reasoning(_text(content, f"{where}, field 'summary'", joint="\n"))
        if kind == "function_call":
            call = Call(
                len(self.calls) + 1,
                _required(item, "call_id", where),
                _required(item, "name", where),
                _text(item.get("arguments"), f"{where}, field 'arguments'"),
            )
            if call.call_id in self.calls:
                raise DataError(f"{where}: a second call with call_id {call.call_id!r}.")
            self.calls[call.call_id] = call
            return call
        if kind == "function_call_output":
            text = _text(item.get("output"), f"{where}, field 'output'")
            return Output(text, self.calls.get(_required(item, "call_id", where)))
        return Other(kind, item, before=0)


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
            f"{near(name, item) if name not in item else ''}."
        )
    return value


def _text(content: Any, where: str, joint: str = "") -> str:
    """Return content given as a text, as nothing, or as a list of parts, of which text is kept."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = (part.get("text") or part.get("refusal") for part in content)
        return joint.join(text for text in texts if isinstance(text, str))
    raise DataError(f"{where}: is {type(content).__name__}, expected a text or a list of parts.")


def _longest_text(arguments: str) -> str:
    """Return the longest text among a call's arguments, or the arguments as they are."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    if not isinstance(parsed, dict):
        return arguments
    return max((v for v in parsed.values() if isinstance(v, str)), key=len, default=arguments)
