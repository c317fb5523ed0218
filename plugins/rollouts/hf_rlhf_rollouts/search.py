"""Read the search-agent form, which is also the storage form of traces.

`{"question": ..., "trace": [{"type": "reasoning", "content"}, {"type": "search", "query"}, {"type":
"search_result", "documents": [{"title", "content"}]}, {"type": "CorrectAnswer", "content"}]}`. Step
types are compared without case, spaces and underscores.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hf_rlhf.data import BadRow, describe_value
from hf_rlhf_rollouts.cleaning import Noted
from hf_rlhf_rollouts.columns import QUESTION_KEYS, first_present, other_fields, row_id
from hf_rlhf_rollouts.content import scalar_text
from hf_rlhf_rollouts.documents import documents_in
from hf_rlhf_rollouts.steps import (
    SEARCH_TOOL,
    Answer,
    Reasoning,
    Rollout,
    Search,
    SearchResult,
    Step,
    Unknown,
)

TRACE_KEYS = ("trace", "steps", "trajectory")
REASONING = {"reasoning", "thought", "thoughts", "think", "thinking", "analysis"}
SEARCH = {"search", "query", "searchquery", "websearch"}
WEB_SEARCH = "web_search"
"""A type that is a tool's name in a call."""
RESULT = {"searchresult", "searchresults", "result", "results", "observation", "information"}
KNOWN = ("reasoning", "thought", "search", "search_result", "observation", "answer")
"""Types to suggest for an unknown type."""
NO_TYPE = "no type"
"""The kind of a step without a type."""
_CANONICAL = {"id", "question", "trace", "fields", "where", "form", "callers"}
_OTHER = re.compile(r"[^a-z0-9]+")


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has a list of steps, not messages."""
    lists = (values[key] for key in TRACE_KEYS if isinstance(values.get(key), list))
    firsts = (steps[0] if steps else None for steps in lists)
    return any(not isinstance(it, Mapping) or "role" not in it or "type" in it for it in firsts)


def read(values: Mapping[str, Any], noted: Noted) -> Rollout:
    """Return the rollout in a matching row. Raises BadRow for an unreadable step."""
    question_field, column = first_present(values, QUESTION_KEYS), first_present(values, TRACE_KEYS)
    trace = values[column]
    if not isinstance(trace, list):
        raise BadRow("no_trace", f"{column!r} is {describe_value(trace)}, expected a list of steps")
    steps: list[Step] = []
    for at, step in enumerate(trace):
        path = f"{column}[{at}]"
        if not isinstance(step, dict):
            raise BadRow("step_not_object", f"{path} is {describe_value(step)}, expected an object")
        steps += _steps(step, path, noted)
    question = scalar_text(values.get(question_field), question_field, noted)
    if values.keys() <= _CANONICAL and isinstance(values.get("fields"), Mapping):
        fields = dict(values["fields"])
    else:
        fields = other_fields(values, (question_field, column, "id"))
    return Rollout(row_id(values), question, tuple(steps), fields)


def _steps(step: Mapping[str, Any], path: str, noted: Noted) -> list[Step]:
    kind = step.get("type")
    plain = _plain(kind) if isinstance(kind, str) else ""
    if plain in REASONING:
        return [Reasoning(_content(step, path, noted, "content", "text", "thought", "reasoning"))]
    if plain in SEARCH:
        return _searches(step, path, WEB_SEARCH if plain == "websearch" else SEARCH_TOOL, noted)
    if plain in RESULT:
        column = first_present(step, ("documents", "results", "content", "text"))
        return [SearchResult(documents_in(step.get(column), f"{path}.{column}", noted))]
    if plain.endswith("answer"):
        return [Answer(_content(step, path, noted, "content", "answer", "text"), str(kind))]
    if plain == "unknown" and "kind" in step:
        return [Unknown(str(step["kind"]), step.get("value"))]
    return [Unknown(kind if isinstance(kind, str) and kind else NO_TYPE, dict(step))]


@lru_cache(1024)
def _plain(kind: str) -> str:
    return _OTHER.sub("", kind.lower())


def _searches(step: Mapping[str, Any], path: str, default: str, noted: Noted) -> list[Step]:
    tool = step.get("tool")
    tool_name = tool if isinstance(tool, str) and tool else default
    column = first_present(step, ("query", "queries", "content"))
    queries = step.get(column)
    listed = queries if isinstance(queries, list) else [queries]  # parallel searches of a step
    return [Search(scalar_text(each, f"{path}.{column}", noted), tool_name) for each in listed]


def _content(step: Mapping[str, Any], path: str, noted: Noted, *names: str) -> str:
    column = first_present(step, names)
    return scalar_text(step.get(column), f"{path}.{column}", noted)
