"""Tools of the tasks, as an environment that TRL resets for each prompt.

The tools answer from the task's own fixtures: no network, the same every time. Each call is
recorded. A tool that fails as the task foresees raises ValueError, which the model sees; one that
could not run at all raises ToolUnavailable, and the run is not scored.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from hf_rlhf.errors import HfRlhfError
from hf_rlhf_agents.calculator import calculate
from hf_rlhf_agents.chains import facts_of
from hf_rlhf_agents.tasks import Task
from hf_rlhf_worlds.multihop import NAMES, RELATIONS, kind_of

MOST_TEXT = 20_000
"""Characters of a result; the rest is cut, and the cut is said in the result."""
RESULTS = 3


class ToolUnavailable(HfRlhfError):
    """A tool could not run, through no fault of the model."""


def recorded(method: Callable[..., str]) -> Callable[..., str]:
    """Record a tool that could not run, and cut results to size."""

    @functools.wraps(method)
    def call(self: "TaskTools", *args: Any, **kwargs: Any) -> str:
        try:
            text = str(method(self, *args, **kwargs))
        except ToolUnavailable as error:
            self.unavailable.append(f"{method.__name__}: {error}")
            raise
        if len(text) > MOST_TEXT:
            return f"{text[:MOST_TEXT]}\n[cut: {len(text)} characters]"
        return text

    return call


class TaskTools:
    """A base of environments for tasks.

    `unavailable` lists the tools that could not run for the current prompt.
    """

    def __init__(self) -> None:
        self.unavailable: list[str] = []
        self._task: Task | None = None

    def reset(self, task: str = "", **_: Any) -> None:
        """Begin a task, given as JSON text in the column `task`."""
        self.unavailable = []
        self._task = Task.model_validate_json(task)

    @property
    def _now(self) -> Task:
        if self._task is None:
            raise ToolUnavailable("no task has begun")
        return self._task

    def _may_fail(self, tool: str, argument: str) -> None:
        fails = self._now.fails
        named = {key.casefold(): error for key, error in fails.items()}
        error = named.get(f"{tool}: {argument.strip()}".casefold()) or named.get(tool)
        if error:
            raise ValueError(error)


class Desk(TaskTools):
    """Search, documents and a calculator."""

    @recorded
    def search(self, query: str) -> str:
        """Find documents. Returns the titles of the best three, each with its first sentence.

        Args:
            query: words to look for.
        """
        self._may_fail("search", query)
        words = set(_words(query))
        found = sorted(
            ((len(words & set(_words(f"{title} {text}"))), title) for title, text in self._texts()),
            key=lambda each: (-each[0], each[1]),
        )
        texts = dict(self._texts())
        lines = [f"{title}: {_first(texts[title])}" for score, title in found[:RESULTS] if score]
        return "\n".join(lines) or "no results"

    @recorded
    def read(self, title: str) -> str:
        """Return the text of a document.

        Args:
            title: the exact title of the document.
        """
        self._may_fail("read", title)
        for known, text in self._texts():
            if known.casefold() == title.strip().casefold():
                return text
        raise ValueError(f"no document with the title {title!r}")

    @recorded
    def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression.

        Args:
            expression: numbers with + - * / // % ** and parentheses, for example (3 + 4) * 2.
        """
        self._may_fail("calculate", expression)
        return calculate(expression)

    def _texts(self) -> list[tuple[str, str]]:
        return [*self._now.documents.items(), *self._now.files.items()]


class Register(TaskTools):
    """A register of facts about towns and people."""

    @recorded
    def lookup(self, relation: str, name: str) -> str:
        """Return a fact about a town or a person.

        Args:
            relation: what to look up, for example mayor.
            name: the town or the person.
        """
        self._may_fail("lookup", f"{relation} of {name}")
        if self._now.facts is None:
            raise ValueError("the register is empty")
        relation, name = relation.strip().lower(), name.strip().title()
        if name not in NAMES[kind_of(name)] or relation not in RELATIONS[kind_of(name)]:
            raise ValueError(f"no {relation!r} of {name!r} in the register")
        return facts_of(self._now.facts).hop(relation, name).sentence


def schemas(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the JSON schemas of tools, as training shows them to the model."""
    from transformers.utils import get_json_schema

    return [get_json_schema(getattr(TOOLS[name](), name)) for name in names]


def tools_of(task: Task) -> dict[str, Callable[..., str]]:
    """Return the tools of a task by name, with the task begun. Raises KeyError."""
    found = {}
    for name in task.tools:
        environment = TOOLS[name]()
        environment.reset(task=task.model_dump_json())
        found[name] = getattr(environment, name)
    return found


TOOLS: dict[str, type[TaskTools]] = {
    **dict.fromkeys(("search", "read", "calculate"), Desk),
    "lookup": Register,
}
"""Name of a tool -> the environment that has it."""


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _first(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]
