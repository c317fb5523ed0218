"""Rollouts, which `hf_rlhf.data` reads in every form, as the steps of a trace.

Calls become searches under the tool's name, outputs become documents, the agent's words between
its calls are reasoning, and the answer is its last message or the one it submitted.
"""

from collections.abc import Mapping
from typing import Any, Literal

from hf_rlhf.data import BadRow, Event, Rollout, Row, parse_rollout
from hf_rlhf_traces import trace
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.documents import documents_in_text
from hf_rlhf_traces.readers.raw_trace import Noted, RawTrace, other_fields, row_id, second_question

ANSWER = "answer"
"""The kind of an answer that nobody has judged."""
_QUERY = ("query", "q", "search_query", "queries", "query_list", "keywords")


def read_rollout(
    form: Literal["responses", "chat"], values: Mapping[str, Any], where: str, noted: Noted
) -> RawTrace:
    """Return question and steps. Raises DataError, naming the item, for what is none."""
    rollout = parse_rollout(Row(dict(values), where), form, lambda text: json_in(text, noted))
    if (again := rollout.second_question) is not None:
        raise second_question(again.text)
    noted.update(rollout.notes)
    noted["earlier_turns"] += len(rollout.earlier_turns)
    noted["later_turns"] += len(rollout.later_turns)
    response = values.get("response")
    details = response if form == "responses" and isinstance(response, Mapping) else {}
    fields = other_fields(values, (*rollout.columns, "id"))
    if isinstance(details.get("model"), str):
        fields.setdefault("model", details["model"])
    if [message.text for message in rollout.input] != [rollout.question]:
        turns = [{"role": message.role, "content": message.text} for message in rollout.input]
        fields.setdefault("input", turns)
    name = row_id(values) or row_id(details)
    return RawTrace(rollout.question, steps_of(rollout, noted), fields, name)


def steps_of(rollout: Rollout, noted: Noted) -> list[trace.Step]:
    """Return the steps of a rollout in order, items of unknown type in their places."""
    noted["results_reordered"] += rollout.outputs_reordered
    noted["submissions_unclear"] += rollout.unclear_submission is not None
    for handed_in in rollout.submissions.values():
        noted.update(f"answer_arguments_left_out.{name}" for name in handed_in.left_out)
    return [step for event in rollout.events if (step := _step(event, noted)) is not None]


def _step(event: Event, noted: Noted) -> trace.Step | None:
    match event.kind:
        case "reasoning" if not event.text.strip():
            noted["hidden_reasoning"] += 1
            return None
        case "message" if event.role != "assistant" and event.text.strip():
            message = {"role": event.role, "content": event.text}
            return trace.Unknown(f"message of {event.role}", message)
        case "reasoning" | "message":
            return trace.Reasoning(event.text)
        case "answer":
            return trace.Answer(event.text, ANSWER)
        case "answer_echo":
            noted["answer_echoes"] += 1
            return None
        case "other":
            return trace.Unknown(event.text, dict(event.item or {}))
    if event.call is None:
        problem = f"an output answers no call: {event.text:.80}"
        raise BadRow("result_before_search", problem)
    if event.kind == "call":
        return search(event.call.name, event.text, noted)
    return trace.SearchResult(documents_in_text(event.text, noted))


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
