"""The search-agent form, which is also the form that traces are kept in.

`{"question": ..., "trace": [{"type": "reasoning", "content"}, {"type": "search", "query"},
{"type": "search_result", "documents": [{"title", "content"}]}, {"type": "CorrectAnswer",
"content"}]}`. Step types are compared without case, spaces and underscores.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from hf_rlhf_traces.readers.documents import documents_in, full
from hf_rlhf_traces.readers.rough import (
    QUESTION_KEYS,
    BadRow,
    Noted,
    Rough,
    first_held,
    kind_of,
    own_id,
    rest,
    text_of,
)
from hf_rlhf_traces.trace import (
    SEARCH_TOOL,
    Answer,
    Document,
    Reasoning,
    Search,
    SearchResult,
    Step,
    Unknown,
)

TRACE_KEYS = ("trace", "steps", "trajectory")
REASONING = {"reasoning", "thought", "thoughts", "think", "thinking", "analysis"}
SEARCH = {"search", "query", "searchquery", "websearch"}
WEB_SEARCH = "web_search"
"""A type that is the name of a tool, as a call of it would have it."""
RESULT = {"searchresult", "searchresults", "result", "results", "observation", "information"}
KNOWN = ("reasoning", "thought", "search", "search_result", "observation", "answer")
"""What a near name is looked for in, when a type is unknown."""
NO_TYPE = "no type"
"""The kind of a step that does not say what it is."""
_CANONICAL = {"id", "question", "trace", "fields", "where"}
_OTHER = re.compile(r"[^a-z0-9]+")


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has a list of steps."""
    return any(isinstance(values.get(key), list) for key in TRACE_KEYS)


def read(values: Mapping[str, Any], where: str, noted: Noted) -> Rough:
    """Return question and steps. Raises BadRow for what is none."""
    question_field, held = first_held(values, QUESTION_KEYS), first_held(values, TRACE_KEYS)
    trace = values.get(held)
    if not isinstance(trace, list):
        raise BadRow("no_trace", f"{held!r} is {kind_of(trace)}, expected a list of steps")
    steps = _exact(trace, noted) or _each(trace, held, noted)
    question = text_of(values.get(question_field), question_field, noted)
    if values.keys() <= _CANONICAL and isinstance(values.get("fields"), Mapping):
        return Rough(question, steps, dict(values["fields"]), own_id(values))
    return Rough(question, steps, rest(values, (question_field, held, "id")), own_id(values))


def _exact(trace: list[Any], noted: Noted) -> list[Step]:
    """Return the steps where all are as they are kept, which most are; nothing otherwise."""
    try:
        steps = msgspec.convert(trace, list[Step])
    except msgspec.ValidationError:
        return []
    for at, step in enumerate(steps):
        if type(step) is SearchResult:
            documents = full(step.documents, noted)
            if len(documents) < len(step.documents):
                steps[at] = SearchResult(documents)
    return steps


def _each(trace: list[Any], held: str, noted: Noted) -> list[Step]:
    steps: list[Step] = []
    for at, step in enumerate(trace):
        if not isinstance(step, dict):
            raise BadRow("step_not_object", f"{held}[{at}] is {kind_of(step)}, expected an object")
        steps += _steps(step, f"{held}[{at}]", noted)
    return steps


def _steps(step: Mapping[str, Any], path: str, noted: Noted) -> list[Step]:
    kind = step.get("type")
    plain = _plain(kind) if isinstance(kind, str) else ""
    if plain in REASONING:
        return [Reasoning(_content(step, path, noted, "content", "text", "thought", "reasoning"))]
    if plain in SEARCH:
        return _searches(step, path, WEB_SEARCH if plain == "websearch" else SEARCH_TOOL, noted)
    if plain in RESULT:
        return [SearchResult(_documents(step, path, noted))]
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
    held = first_held(step, ("query", "queries", "content"))
    queries = step.get(held)
    if isinstance(queries, list):
        # Parallel searches of one step.
        return [
            Search(text_of(query, f"{path}.{held}[{at}]", noted), tool_name)
            for at, query in enumerate(queries)
        ]
    return [Search(text_of(queries, f"{path}.{held}", noted), tool_name)]


def _documents(step: Mapping[str, Any], path: str, noted: Noted) -> tuple[Document, ...]:
    names = ("documents", "results", "content", "text")
    held = first_held(step, names)
    return documents_in(step.get(held), f"{path}.{held}", noted)


def _content(step: Mapping[str, Any], path: str, noted: Noted, *names: str) -> str:
    held = first_held(step, names)
    return text_of(step.get(held), f"{path}.{held}", noted)
