"""A rollout of tool calls, whatever form it was written in, as the steps of a trace.

Calls become searches under the tool's name, outputs become documents, what the agent said between
its calls is reasoning, and the answer is its last message or what it handed in.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from hf_rlhf.data import Call, Message, Other, Output, Reasoning, Rollout, Step
from hf_rlhf_traces import trace
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.documents import documents_in_text
from hf_rlhf_traces.readers.rough import BadRow, Noted

ANSWER = "answer"
"""The kind of an answer that nobody has judged."""
_QUERY = ("query", "q", "search_query", "queries", "query_list", "keywords")


def steps_of(rollout: Rollout, noted: Noted) -> list[trace.Step]:
    """Return the steps of a rollout in order, items of unknown type in their places.

    Outputs of parallel calls are put into the order of the calls.
    """
    submitted = _submitted(rollout)
    last = None if submitted else _last_message(rollout)
    created: list[trace.Step] = []
    others = deque(rollout.others)
    for at, step in enumerate(_paired(rollout.steps, noted)):
        # Results of parallel calls belong together: what stands between them comes behind them.
        while others and others[0].before <= at and not _goes_on(rollout.steps, at):
            created.append(_unknown(others.popleft()))
        if at == last and isinstance(step, Message):
            created.append(trace.Answer(step.text, ANSWER))
        elif submitted and step is rollout.answer_call:
            created.append(trace.Answer(submitted, ANSWER))
        elif submitted and isinstance(step, Output) and step.call is rollout.answer_call:
            noted["answer_echoes"] += 1
        else:
            created += _steps(step, noted)
    return [*created, *map(_unknown, others)]


def _paired(steps: Sequence[Step], noted: Noted) -> Iterator[Step]:
    """Yield the steps with outputs in a row in the order of their calls: a trace has no ids."""
    for returned, run in groupby(steps, lambda step: isinstance(step, Output)):
        outputs = list(run)
        if returned:
            ordered = sorted(outputs, key=_number)
            noted["results_reordered"] += outputs != ordered
            outputs = ordered
        yield from outputs


def _number(step: Step) -> int:
    return step.call.number if isinstance(step, Output) and step.call else 0


def _goes_on(steps: Sequence[Step], at: int) -> bool:
    """Whether an output stands at a place, and another one right before it."""
    return at > 0 and isinstance(steps[at], Output) and isinstance(steps[at - 1], Output)


def _unknown(other: Other) -> trace.Unknown:
    return trace.Unknown(other.kind, dict(other.item))


def _submitted(rollout: Rollout) -> str:
    """Return what the agent handed in as its answer, whatever it said before and after that."""
    call = rollout.answer_call
    return replace(rollout, steps=(call,)).answer.strip() if call else ""


def _last_message(rollout: Rollout) -> int | None:
    """Return the place of the agent's last message, if that stands behind all tool output."""
    for at in range(len(rollout.steps) - 1, -1, -1):
        step = rollout.steps[at]
        if isinstance(step, Message) and step.role == "assistant" and step.text.strip():
            return at
        if isinstance(step, (Output, Call)):
            return None
    return None


def _steps(step: Any, noted: Noted) -> Iterator[trace.Step]:
    match step:
        case Reasoning(text):
            if text.strip():
                yield trace.Reasoning(text)
            else:
                noted["hidden_reasoning"] += 1
        case Message(role, text):
            if role == "assistant" or not text.strip():
                yield trace.Reasoning(text)
            else:
                yield trace.Unknown(f"message of {role}", {"role": role, "content": text})
        case Call():
            yield search(step.name, step.arguments, noted)
        case Output(text, call):
            if call is None:
                raise BadRow("result_before_search", f"an output answers no call: {text:.80}")
            yield trace.SearchResult(documents_in_text(text, noted))


def search(tool: str, arguments: str, noted: Noted) -> trace.Search:
    """Return the search that a call is: its query, if that is all, or its arguments as written."""
    value = json_in(arguments, noted)
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _QUERY:
        query = next(iter(value.values()))
        if isinstance(query, list) and len(query) == 1:
            query = query[0]
        if isinstance(query, str):
            return trace.Search(query, tool)
    return trace.Search(arguments, tool)
