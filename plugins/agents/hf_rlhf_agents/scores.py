"""Scores of an agent's run: is the answer right, and were the right calls made?

A run is read from its messages (Chat Completions), so that trajectories of TRL, of inspect and of
files are scored alike. Nothing here is random or calls a model.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapidfuzz.distance import Levenshtein

from hf_rlhf_agents.tasks import Call, Task, normal, number

ANSWER = "ANSWER:"
"""Marks the line with the final answer; without it, the last line counts."""

_REFUSES = re.compile(
    r"\b(cannot|can ?not|can't|could not|couldn't|unable|unknown|not (be )?(found|available|known)"
    r"|no (such|information|record|answer)|does not exist|doesn't exist|unavailable)\b",
    re.IGNORECASE,
)

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Called:
    """A call that the agent made; `arguments` is None if they were not a JSON object."""

    tool: str
    arguments: dict[str, Any] | None


@dataclass(frozen=True)
class Process:
    """How the calls compare with the expected calls."""

    score: float
    """1 - edit distance / the longer of both sequences; 1.0 if both are empty."""
    matched: int
    """Expected calls that were made, in sequence."""
    expected: int
    wasted: int
    """Calls that are no expected ones."""


def calls_of(messages: Sequence[Message]) -> list[Called]:
    """Return the calls of the assistant's messages, in sequence."""
    calls = []
    for message in messages:
        if message.get("role") != "assistant":
            continue
        for call in message.get("tool_calls") or ():
            function = call.get("function") or call
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments)
                except (ValueError, RecursionError):
                    arguments = None
            named = arguments if isinstance(arguments, dict) else None
            calls.append(Called(str(function.get("name", "")), named))
    return calls


def answer_of(messages: Sequence[Message]) -> str:
    """Return the final answer, empty if there is none.

    It stands in the last message, if that is the assistant's and calls nothing: behind `ANSWER:`,
    else in the last line. Two different answers are no answer.
    """
    if not messages:
        return ""
    last = messages[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return ""
    content = last.get("content")
    lines = [line.strip() for line in str(content or "").splitlines() if line.strip()]
    marked = [line.partition(ANSWER)[2].strip() for line in lines if ANSWER in line]
    if len({normal(each) for each in marked}) > 1:
        return ""
    return marked[-1] if marked else (lines[-1] if lines else "")


def right(task: Task, answer: str, calls: Sequence[Called] = ()) -> bool:
    """Return whether an answer is acceptable; for `cases`, grade the code instead.

    A refusal is right only after the calls that show that there is no answer, and has no numbers
    beside those that were asked or told.
    """
    if task.scored == "refusal":
        tried = process(task, calls).matched == len(task.calls)
        told = " ".join([task.question, *task.fails.values()])
        made_up = set(re.findall(r"\d+", answer)) - set(re.findall(r"\d+", told))
        return tried and not made_up and bool(_REFUSES.search(answer))
    if task.scored == "gaia":
        from inspect_evals.gaia.scorer import question_scorer

        return any(question_scorer(answer, each)[0] for each in task.answers)
    if task.scored == "number":
        given = number(answer)
        wanted = [value for each in task.answers if (value := number(each)) is not None]
        return given is not None and any(
            math.isclose(given, value, rel_tol=1e-6, abs_tol=1e-9) for value in wanted
        )
    return normal(answer) in {normal(each) for each in task.answers}


def token_f1(task: Task, answer: str) -> float:
    """Return the best F1 of the answer's words over all acceptable answers (SQuAD)."""
    given = Counter(normal(answer).split())

    def of(wanted: Counter[str]) -> float:
        shared = (given & wanted).total()
        return 2 * shared / (given.total() + wanted.total()) if shared else 0.0

    return max((of(Counter(normal(each).split())) for each in task.answers), default=0.0)


def process(task: Task, calls: Sequence[Called]) -> Process:
    """Compare calls with the expected calls, by edit distance over whole calls."""
    wanted = [_key(task.calls, call.tool, call.arguments) for call in task.calls]
    made = [
        _key(task.calls, call.tool, call.arguments) or f"other {n}" for n, call in enumerate(calls)
    ]
    matched = sum(
        block.src_end - block.src_start
        for block in Levenshtein.opcodes(wanted, made)
        if block.tag == "equal"
    )
    return Process(
        score=Levenshtein.normalized_similarity(wanted, made),
        matched=matched,
        expected=len(wanted),
        wasted=len(made) - matched,
    )


def _key(expected: Sequence[Call], tool: str, arguments: Any) -> str:
    """Return the number of the first expected call that a call is, as text; else empty."""
    for at, each in enumerate(expected):
        if each.allows(tool, arguments):
            return str(at)
    return ""
