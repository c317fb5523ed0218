"""Agent rollouts as typed steps, parted at the question, whatever form they were written in."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

from hf_rlhf.data.submissions import Submission, submission, takes_answers

_FRAMING = re.compile(r"(?:^|\n)[ \t]*Question:[ \t]*\n", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """A turn of text."""

    role: str
    text: str


@dataclass(frozen=True)
class Reasoning:
    """A thought of the agent; `text` is "" if the provider hides it."""

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
    """The output of a tool, and the call that it answers (None if there is no such call)."""

    text: str
    call: Call | None


@dataclass(frozen=True)
class Other:
    """An item of a type that is not read, as it is: never guessed at."""

    kind: str
    item: Mapping[str, Any]


Step = Message | Reasoning | Call | Output | Other


class Calls:
    """The calls of a rollout as they are read, and which of them wait for their output."""

    def __init__(self) -> None:
        self.number = 0
        self._waiting: list[Call] = []
        self._by_id: dict[str, Call] = {}
        self._outputs_came = False

    def add(self, call_id: str, name: str, arguments: str) -> Call:
        """Return the next call."""
        self.number += 1
        call = Call(self.number, call_id or f"call {self.number}", name, arguments)
        if self._outputs_came:  # a call of an earlier turn that has the id waits in vain
            self._waiting = [each for each in self._waiting if each.call_id != call.call_id]
        self._outputs_came = False
        self._waiting.append(call)
        self._by_id[call.call_id] = call
        return call

    def answered(self, call_id: str | None) -> Call | None:
        """Return the call that an output answers: the first that waits, of that id if it has one.

        Servers that count in each turn use ids again. The second output of a call names it, too.
        """
        self._outputs_came = True
        fitting = (call for call in self._waiting if call_id in (None, "", call.call_id))
        call = next(fitting, None)
        if call is None:
            return self._by_id.get(call_id or "")
        self._waiting.remove(call)
        return call


class Event(NamedTuple):
    """One thing that happened in a rollout."""

    kind: Literal["reasoning", "message", "call", "output", "answer", "answer_echo", "other"]
    text: str
    """Of a call, its arguments; of an item that is not read, its type."""
    role: str = ""
    """Of a message."""
    call: Call | None = None
    """Of a call, and the one that an output answers."""
    item: Mapping[str, Any] | None = None
    """One that is not read."""


@dataclass(frozen=True)
class Rollout:
    """One agent run: the question, and the agent's steps in order."""

    where: str
    input: tuple[Message, ...]
    """System prompts and the conversation up to the question: the user's last turn here."""
    steps: tuple[Step, ...]
    """Everything after the question, with the user's `later_turns`."""
    fields: Mapping[str, Any]
    """The whole row, for what else it records: rewards, judgements, expected answers."""
    columns: tuple[str, ...] = ()
    """The columns of `fields` that the steps were read from."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Changes while the row was read -> how often, such as `numbers_as_text`."""

    @property
    def unknown(self) -> Mapping[str, int]:
        """The number of items of each type that is not read."""
        return dict(Counter(step.kind for step in self.steps if isinstance(step, Other)))

    @property
    def question(self) -> str:
        """The last of the user's turns in `input`, from behind a line `Question:` if it has one."""
        turns = [message.text for message in self.input if message.role == "user"]
        return _FRAMING.split(turns[-1])[-1].strip() if turns else ""

    @property
    def earlier_turns(self) -> tuple[Message, ...]:
        """The turns of user and agent before the question."""
        return tuple(turn for turn in self.input if turn.role in ("user", "assistant"))[:-1]

    @property
    def later_turns(self) -> tuple[Message, ...]:
        """The user's turns after the first call, such as a demand for the final answer."""
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
                answered = answered or _is_reply(step)
            elif isinstance(step, (Call, Output)):
                call = step.call if isinstance(step, Output) else step
                answered = call is not None and submission(call.name, call.arguments) is not None
        return None

    @property
    def reasoning(self) -> str:
        """All thoughts shown, and what the agent said between its tool calls, in order."""
        last = max((n for n, step in enumerate(self.steps) if isinstance(step, Call)), default=0)
        texts = [
            step.text
            for number, step in enumerate(self.steps)
            if isinstance(step, Reasoning) or (_is_from(step, "assistant") and number < last)
        ]
        return "\n\n".join(text.strip() for text in texts if text.strip())

    @property
    def submissions(self) -> dict[Call, Submission]:
        """The last calls, if they hand in the answer: several if they are parallel."""
        submissions: dict[Call, Submission] = {}
        replies = self._last_message is not None
        for step in reversed(self.steps):
            if isinstance(step, Call):
                found = submission(step.name, step.arguments, replies=replies)
                if found is None:
                    break
                submissions[step] = found
            elif submissions and isinstance(step, Output):
                break
        return submissions

    @property
    def unclear_submission(self) -> Call | None:
        """The last call, if its tool takes answers and none of its arguments is clearly one."""
        last = next((step for step in reversed(self.steps) if isinstance(step, Call)), None)
        return last if last and takes_answers(last.name) and not self.submissions else None

    @property
    def answer(self) -> str:
        """The agent's answer: its last message after all tool output, or the one it submitted.

        "" if it stopped without either.
        """
        return next((event.text for event in self.events if event.kind == "answer"), "")

    @property
    def events(self) -> list[Event]:
        """The steps in order, the answer marked.

        Outputs of parallel calls are in the order of the calls, and nothing stands between them.
        """
        submissions = self.submissions
        reply = None if submissions else self._last_message
        events: list[Event] = []
        for step in (step for group in _groups(self.steps) for step in sorted(group, key=_order)):
            if isinstance(step, Call) and step in submissions:
                events.append(Event("answer", submissions[step].text))
            elif isinstance(step, Output) and step.call in submissions:
                events.append(Event("answer_echo", step.text))
            elif step is reply:
                events.append(Event("answer", _event(step).text))
            else:
                events.append(_event(step))
        return events

    @property
    def outputs_reordered(self) -> int:
        """The number of groups of outputs that are not in the order of their calls."""
        groups = (
            [step for step in group if isinstance(step, Output)] for group in _groups(self.steps)
        )
        return sum(sorted(group, key=_order) != group for group in groups)

    @property
    def _last_message(self) -> Message | None:
        """The agent's last message, if it follows all tool output."""
        for step in reversed(self.steps):
            if _is_reply(step):
                return step
            if isinstance(step, (Output, Call)):
                return None
        return None

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The tools' outputs, without the echo of a submitted answer."""
        echoed = self.submissions
        outputs = (step for step in self.steps if isinstance(step, Output))
        return tuple(output for output in outputs if output.call not in echoed)


def rollout_of(
    where: str,
    items: Sequence[Step],
    fields: Mapping[str, Any],
    columns: tuple[str, ...] = (),
    notes: Mapping[str, int] | None = None,
) -> Rollout:
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
    turns += [item for item in items[begin:acts] if _is_from(item, "system", "developer")]
    steps = [
        item
        for number, item in enumerate(items[begin:], start=begin)
        if number >= acts or not _is_from(item, "system", "developer")
    ]
    return Rollout(where, tuple(turns), tuple(steps), fields, columns, notes or {})


def _groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield outputs in a row, with the items among them that are not read, and other steps alone.

    Such items before the first output are alone, too.
    """
    group: list[Step] = []
    for step in steps:
        if group and not isinstance(step, (Output, Other)):
            yield group
            group = []
        if group or isinstance(step, Output):
            group.append(step)
        else:
            yield [step]
    if group:
        yield group


def _order(step: Step) -> tuple[bool, int]:
    """Return the place in a group: outputs by the numbers of their calls, then other items."""
    call = step.call if isinstance(step, Output) else None
    return isinstance(step, Other), call.number if call else 0


def _event(step: Step) -> Event:
    match step:
        case Reasoning(text):
            return Event("reasoning", text)
        case Message(role, text):
            return Event("message", text, role)
        case Call():
            return Event("call", step.arguments, call=step)
        case Output(text, call):
            return Event("output", text, call=call)
        case Other(kind, item):
            return Event("other", kind, item=item)


def _is_reply(step: Step) -> TypeGuard[Message]:
    return _is_from(step, "assistant") and bool(step.text.strip())


def _is_from(item: Step, *roles: str) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in roles
