"""Assemble a rollout (question, steps, answer) from the ordered items of a conversation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts.cleaning import Noted, json_in
from hf_rlhf_rollouts.documents import documents_in_text
from hf_rlhf_rollouts.steps import Answer, Reasoning, Rollout, Search, SearchResult, Step, Unknown
from hf_rlhf_rollouts.submissions import Submission, submission, takes_answers

ANSWER = "answer"
"""The kind of an unjudged answer."""
_QUERY = ("query", "q", "search_query", "queries", "query_list", "keywords")
_FRAMING = re.compile(r"(?:^|\n)[ \t]*Question:[ \t]*\n", re.IGNORECASE)


@dataclass(frozen=True)
class Message:
    """A turn of text."""

    role: str
    text: str


@dataclass(frozen=True)
class Call:
    """A tool call. `number` counts the rollout's calls from 1, parallel calls in order."""

    number: int
    call_id: str
    name: str
    arguments: str
    """The agent's raw JSON, possibly unparsable."""


@dataclass(frozen=True)
class Output:
    """A tool's output, and the call that it answers (None without such a call)."""

    text: str
    call: Call | None


Item = Message | Reasoning | Call | Output | Unknown


class Calls:
    """The calls of a rollout as they are read, with the calls that wait for their output."""

    def __init__(self) -> None:
        self.number = 0
        self._waiting: list[Call] = []
        self._by_id: dict[str, Call] = {}
        self._outputs_came = False

    def add(self, call_id: str, name: str, arguments: str) -> Call:
        """Return the next call."""
        self.number += 1
        call = Call(self.number, call_id or f"call {self.number}", name, arguments)
        if self._outputs_came:  # an earlier turn's call with this id never gets its output
            self._waiting = [each for each in self._waiting if each.call_id != call.call_id]
        self._outputs_came = False
        self._waiting.append(call)
        self._by_id[call.call_id] = call
        return call

    def answered(self, call_id: str | None) -> Call | None:
        """Return the call that an output answers: the first waiting call, with the id if given.

        Servers that count calls per turn reuse ids. A call's second output also returns the call.
        """
        self._outputs_came = True
        fitting = (call for call in self._waiting if call_id in (None, "", call.call_id))
        call = next(fitting, None)
        if call is None:
            return self._by_id.get(call_id or "")
        self._waiting.remove(call)
        return call


def second_question(text: str) -> BadRow:
    """Return the error for a question after the agent's first turn; a rollout has just one."""
    return BadRow("user_turn_in_the_middle", f"a question after the agent's first turn: {text:.80}")


def rollout_of(items: Sequence[Item], fields: Mapping[str, Any], noted: Noted) -> Rollout:
    """Return the rollout of the items, split at the question. Raises BadRow if there is none.

    The question is the user's last turn before the first call, after a line `Question:` if present;
    without a call, the user's last turn. Earlier turns and all system prompts become the field
    `input`. The items after the question are steps, even in a request that continues a
    conversation.
    """
    acts = next((n for n, item in enumerate(items) if isinstance(item, Call)), len(items))
    asked = (n for n, item in enumerate(items[:acts]) if _is_from(item, "user"))
    begin = max(asked, default=-1) + 1
    turns = [item for item in items[:begin] if isinstance(item, Message)]
    turns += [item for item in items[begin:acts] if _is_from(item, "system", "developer")]
    rest = [
        item
        for number, item in enumerate(items[begin:], start=begin)
        if number >= acts or not _is_from(item, "system", "developer")
    ]
    _refuse_second_question(rest)
    noted["earlier_turns"] += max(sum(turn.role in ("user", "assistant") for turn in turns) - 1, 0)
    noted["later_turns"] += sum(_is_from(item, "user") for item in rest)
    questions = [turn.text for turn in turns if turn.role == "user"]
    question = _FRAMING.split(questions[-1])[-1].strip() if questions else ""
    if [turn.text for turn in turns] != [question] and "input" not in fields:
        before = [{"role": turn.role, "content": turn.text} for turn in turns]
        fields = {**fields, "input": before}
    steps, callers = _steps(rest, noted)
    return Rollout("", question, steps, fields, callers=callers)


def _refuse_second_question(items: Sequence[Item]) -> None:
    """Raise BadRow for a user turn after an answer: the next answer replies to it."""
    answered = False
    for item in items:
        if _is_from(item, "user"):
            if answered:
                raise second_question(item.text)
        elif isinstance(item, Message):
            answered = answered or _is_reply(item)
        elif isinstance(item, (Call, Output)):
            call = item.call if isinstance(item, Output) else item
            answered = call is not None and submission(call.name, call.arguments) is not None


def _steps(
    items: Sequence[Item], noted: Noted
) -> tuple[tuple[Step, ...], tuple[tuple[int, str], ...]]:
    """Return the steps, including the answer, and the calls of the results.

    Outputs of parallel calls follow the order of the calls, without other items between them.
    """
    reply = _last_message(items)
    submissions = _submissions(items, replies=reply is not None)
    last = next((item for item in reversed(items) if isinstance(item, Call)), None)
    noted["submissions_unclear"] += bool(last and takes_answers(last.name) and not submissions)
    for each in submissions.values():
        noted.update(f"answer_arguments_left_out.{name}" for name in each.left_out)
    steps: list[Step] = []
    callers: list[tuple[int, str]] = []
    for group in _groups(items):
        outputs = [item for item in group if isinstance(item, Output)]
        noted["results_reordered"] += sorted(outputs, key=_order) != outputs
        for item in sorted(group, key=_order):
            if isinstance(item, Call):
                handed_in = submissions.get(item)
                answer = Answer(handed_in.text, ANSWER) if handed_in else None
                steps.append(answer or search(item.name, item.arguments, noted))
            elif isinstance(item, Output):
                if item.call is None:
                    problem = f"an output answers no call: {item.text:.80}"
                    raise BadRow("result_before_search", problem)
                if item.call in submissions:
                    noted["answer_echoes"] += 1
                    continue
                steps.append(SearchResult(documents_in_text(item.text, noted)))
                callers.append((item.call.number, item.call.name))
            elif item is reply and not submissions:
                steps.append(Answer(reply.text, ANSWER))
            else:
                steps += _words(item, noted)
    return tuple(steps), tuple(callers)


def _words(item: Message | Reasoning | Unknown, noted: Noted) -> list[Step]:
    """Return the step of any other item; none for a hidden thought."""
    if isinstance(item, Unknown):
        return [item]
    if isinstance(item, Message):
        if item.role != "assistant" and item.text.strip():
            message = {"role": item.role, "content": item.text}
            return [Unknown(f"message of {item.role}", message)]
        return [Reasoning(item.text)]
    noted["hidden_reasoning"] += not item.content.strip()
    return [item] if item.content.strip() else []


def _submissions(items: Sequence[Item], *, replies: bool) -> dict[Call, Submission]:
    """Return the last calls if they submit the answer: several if they are parallel."""
    submissions: dict[Call, Submission] = {}
    for item in reversed(items):
        if isinstance(item, Call):
            found = submission(item.name, item.arguments, replies=replies)
            if found is None:
                break
            submissions[item] = found
        elif submissions and isinstance(item, Output):
            break
    return submissions


def _last_message(items: Sequence[Item]) -> Message | None:
    """Return the agent's last message, if it follows all tool output."""
    for item in reversed(items):
        if _is_reply(item):
            return item
        if isinstance(item, (Output, Call)):
            return None
    return None


def _groups(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Yield consecutive outputs, with unread items among them, and other items alone.

    Unread items before the first output are alone, too.
    """
    group: list[Item] = []
    for item in items:
        if group and not isinstance(item, (Output, Unknown)):
            yield group
            group = []
        if group or isinstance(item, Output):
            group.append(item)
        else:
            yield [item]
    if group:
        yield group


def _order(item: Item) -> tuple[bool, int]:
    """Return the place in a group: outputs by the numbers of their calls, then other items."""
    call = item.call if isinstance(item, Output) else None
    return isinstance(item, Unknown), call.number if call else 0


def _is_reply(item: Item) -> TypeGuard[Message]:
    return _is_from(item, "assistant") and bool(item.text.strip())


def _is_from(item: Item, *roles: str) -> TypeGuard[Message]:
    return isinstance(item, Message) and item.role in roles


def search(tool: str, arguments: str, noted: Noted) -> Search:
    """Return the search of a call: its query if it has nothing else, or its raw arguments."""
    value = json_in(arguments, noted)
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _QUERY:
        query = next(iter(value.values()))
        if isinstance(query, list) and len(query) == 1:
            query = query[0]
        if isinstance(query, str):
            return Search(query, tool)
    return Search(arguments, tool)
