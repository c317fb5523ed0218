"""The steps of an agent that answers a question: a single typed form for all rows.

The types are msgspec structs, which are written and read in the search-agent form (`{"question",
"trace": [{"type", ...}]}`).
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

SEARCH_TOOL = "search"
RIGHT_ANSWER = "CorrectAnswer"


# They hold no cycles, so the garbage collector may ignore them.
class Document(Struct, frozen=True, gc=False):
    """A document from a tool. Its other fields are lines of the content."""

    title: str
    content: str


class _Step(Struct, frozen=True, gc=False, tag_field="type"):
    """An action of the agent, or a result. `type` is its name in JSON."""


class Reasoning(_Step, frozen=True, gc=False, tag="reasoning"):
    """A thought of the agent, or its words between searches."""

    content: str


class Search(_Step, frozen=True, gc=False, tag="search"):
    """A query, or a call of another tool with its raw arguments."""

    query: str
    tool: str = SEARCH_TOOL


class SearchResult(_Step, frozen=True, gc=False, tag="search_result"):
    """The result of an earlier search; parallel searches have several in a row."""

    documents: tuple[Document, ...]


class Answer(_Step, frozen=True, gc=False, tag=RIGHT_ANSWER):
    """The agent's answer. `kind` is its type in the source."""

    content: str
    kind: str = RIGHT_ANSWER


class Unknown(_Step, frozen=True, gc=False, tag="unknown"):
    """A step of an unknown type, unchanged: never guessed at, never trained on."""

    kind: str
    value: Any


Step = Reasoning | Search | SearchResult | Answer | Unknown


class Rollout(Struct, frozen=True, gc=False):
    """An agent's run, in order."""

    id: str
    """The row's own id; "" without an id."""
    question: str
    steps: tuple[Step, ...] = field(name="trace")
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The row's other fields: expected answers, rewards, verdicts; turns before the question."""
    where: str = ""
    """The place in error messages: `raw.jsonl:12`."""
    form: str = ""
    """The form of the row, a key of `rollout_forms()`."""
    callers: tuple[tuple[int, str], ...] = ()
    """For each result, the number of its call, counted from 1, and the tool; empty if the form
    lacks them."""

    @property
    def answer(self) -> str:
        """Return the last answer, or "" if the agent gave no answer."""
        answers = [step.content for step in self.steps if isinstance(step, Answer)]
        return answers[-1] if answers else ""
