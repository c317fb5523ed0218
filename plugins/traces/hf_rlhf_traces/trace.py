"""What an agent did to answer a question: one typed form, whatever it was read from.

As JSON it is the search-agent form (`{"question", "trace": [{"type", ...}]}`) with an `id`, the
`where` it was read from, and `fields` for the rest of the row. The types are msgspec's, which makes
them of JSON and of parsed rows, and checks them, without Python code for each step.
"""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta, Struct, field

SEARCH_TOOL = "search"
RIGHT_ANSWER = "CorrectAnswer"


# They hold no cycles, so that the garbage collector need not know of them.
class Document(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One thing that a search found."""

    title: str
    content: str


class _Step(Struct, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True):
    """What an agent did, or what came back. `type` is the name in JSON."""


class Reasoning(_Step, frozen=True, gc=False, tag="reasoning"):
    """What the agent thought, or said between its searches."""

    content: str


class Search(_Step, frozen=True, gc=False, tag="search", omit_defaults=True):
    """A query, or a call of another tool with its arguments as they were written."""

    query: str
    tool: Annotated[str, Meta(min_length=1)] = SEARCH_TOOL


class SearchResult(_Step, frozen=True, gc=False, tag="search_result"):
    """What came back, for a search before it; parallel searches have several in a row."""

    documents: tuple[Document, ...]


class Answer(_Step, frozen=True, gc=False, tag=RIGHT_ANSWER, omit_defaults=True):
    """What the agent answered. `kind` is the type that the source gives it, and JSON's."""

    content: str
    kind: Annotated[str, Meta(pattern=f"^{RIGHT_ANSWER}$")] = RIGHT_ANSWER
    """The pattern holds for what msgspec makes: other kinds are `from_json`'s to read."""


class Unknown(_Step, frozen=True, gc=False, tag="unknown"):
    """A step of a type that is not read here, as it was: never guessed at, never trained on."""

    kind: str
    value: Any


Step = Reasoning | Search | SearchResult | Answer | Unknown


class Trace(Struct, frozen=True, gc=False):
    """One run of an agent, in order."""

    id: str
    question: str
    steps: tuple[Step, ...] = field(name="trace")
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row holds: expected answers, rewards, verdicts."""
    where: str = ""
    """The place to name in an error: `traces.jsonl:12`."""

    @property
    def key(self) -> str:
        """What stands for the question, however it is cased, spaced or composed: 16 hex digits."""
        return question_key(self.question)

    @property
    def answer(self) -> str:
        """The last answer, or "" if the agent gave none."""
        answers = [step.content for step in self.steps if isinstance(step, Answer)]
        return answers[-1] if answers else ""


def question_key(question: str) -> str:
    """Return 16 hex digits that questions share which differ in case, space or composition only."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def to_json(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON, in the search-agent form."""
    return {
        "id": trace.id,
        "question": trace.question,
        "trace": [_step_to_json(step) for step in trace.steps],
        "fields": dict(trace.fields),
        "where": trace.where,
    }


def _step_to_json(step: Step) -> dict[str, Any]:
    match step:
        case Reasoning(content):
            return {"type": "reasoning", "content": content}
        case Search(query, tool):
            tool_field = {} if tool == SEARCH_TOOL else {"tool": tool}
            return {"type": "search", "query": query, **tool_field}
        case SearchResult(documents):
            listed = [
                {"title": document.title, "content": document.content} for document in documents
            ]
            return {"type": "search_result", "documents": listed}
        case Answer(content, kind):
            return {"type": kind, "content": content}
        case Unknown(kind, value):
            return {"type": "unknown", "kind": kind, "value": value}


def body_of(trace: Trace) -> bytes:
    """Return the JSON of `to_json` without braces, id and place.

    Raises TypeError (orjson.JSONEncodeError) for fields that are no JSON, or nested too deep.
    """
    steps = trace.steps
    if all(map(_usual, steps)):
        written = _ENCODER.encode(steps)
    else:
        written = orjson.dumps([_step_to_json(step) for step in steps], default=str)
    question = orjson.dumps(trace.question)
    fields = orjson.dumps(trace.fields, default=str)
    return b'"question":%b,"trace":%b,"fields":%b' % (question, written, fields)


def _usual(step: Step) -> bool:
    """Whether msgspec writes a step as `to_json` does: to it, defaults are objects, not texts."""
    if type(step) is Answer:
        return step.kind is RIGHT_ANSWER
    if type(step) is Search:
        return step.tool is SEARCH_TOOL
    return type(step) is not Unknown


def decoded(line: bytes | str) -> Trace:
    """Return the trace in a line of traces.jsonl. Raises ValueError, KeyError or TypeError."""
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError:
        return from_json(orjson.loads(line))


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Trace)


def from_json(row: Mapping[str, Any]) -> Trace:
    """Return the trace that `to_json` wrote. What others wrote is read by the readers instead."""
    steps = tuple(_step_from_json(step) for step in row["trace"])
    return Trace(row["id"], row["question"], steps, row["fields"], row["where"])


def _step_from_json(step: Mapping[str, Any]) -> Step:
    match step["type"]:
        case "reasoning":
            return Reasoning(step["content"])
        case "search":
            return Search(step["query"], step.get("tool", SEARCH_TOOL))
        case "search_result":
            documents = (
                Document(document["title"], document["content"]) for document in step["documents"]
            )
            return SearchResult(tuple(documents))
        case "unknown":
            return Unknown(step["kind"], step["value"])
        case kind:
            return Answer(step["content"], kind)


class Turn(Struct, frozen=True, gc=False):
    """What the agent did at one go, and what came back."""

    said: tuple[Step, ...]
    """Reasoning, searches (several if parallel) or an answer."""
    results: tuple[SearchResult, ...]
    """What the searches found; empty at the end of a trace."""


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Part a trace at its results: results in a row belong together. Unknown steps stay in `said`.

    All `said` and `results` one after another are the steps again.
    """
    parted: list[Turn] = []
    actions: list[Step] = []
    results: list[SearchResult] = []
    for step in steps:
        if isinstance(step, SearchResult):
            results.append(step)
            continue
        if results:
            parted.append(Turn(tuple(actions), tuple(results)))
            actions, results = [], []
        actions.append(step)
    if actions or results:
        parted.append(Turn(tuple(actions), tuple(results)))
    return parted
