"""An agent's steps to answer a question: one typed form for all sources.

The types are msgspec's, which makes them of rows in the search-agent form (`{"question", "trace":
[{"type", ...}]}`), and checks them, without Python code for each step.
"""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

SEARCH_TOOL = "search"
RIGHT_ANSWER = "CorrectAnswer"


# They hold no cycles, so that the garbage collector need not know of them.
class Document(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One thing that a search found."""

    title: str
    content: str


class _Step(Struct, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True):
    """An action of the agent, or a result. `type` is its name in JSON."""


class Reasoning(_Step, frozen=True, gc=False, tag="reasoning"):
    """A thought of the agent, or its words between searches."""

    content: str


class Search(_Step, frozen=True, gc=False, tag="search"):
    """A query, or a call of another tool with its arguments as they were written."""

    query: str
    tool: Annotated[str, Meta(min_length=1)] = SEARCH_TOOL


class SearchResult(_Step, frozen=True, gc=False, tag="search_result"):
    """The result of an earlier search; parallel searches have several in a row."""

    documents: tuple[Document, ...]


class Answer(_Step, frozen=True, gc=False, tag=RIGHT_ANSWER):
    """The agent's answer. `kind` is its type in the source."""

    content: str
    kind: Annotated[str, Meta(pattern=f"^{RIGHT_ANSWER}$")] = RIGHT_ANSWER
    """The pattern is for msgspec; answers of other kinds are read by the readers."""


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
    """The row's other fields: expected answers, rewards, verdicts."""
    where: str = ""
    """The place to name in an error: `raw.jsonl:12`."""

    @property
    def key(self) -> str:
        """16 hex digits of the question, regardless of case, spaces and Unicode composition."""
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


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def content_of(trace: Trace) -> bytes:
    """Return question, steps and fields as JSON, of which the digest of a trace is made.

    Raises TypeError or UnicodeEncodeError for what is no JSON, RecursionError for deep nesting.
    """
    return _ENCODER.encode((trace.question, trace.steps, trace.fields))


class Turn(Struct, frozen=True, gc=False):
    """The agent's actions before it waited, and their results."""

    actions: tuple[Step, ...]
    """Reasoning, searches (several if parallel) or an answer; unknown steps."""
    results: tuple[SearchResult, ...]
    """Empty at the end of a trace."""


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Part a trace at its results: results in a row belong together.

    All actions and results one after another are the steps again.
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
