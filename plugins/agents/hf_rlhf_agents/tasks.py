"""Tasks for agents: a question, the calls that answer it, and its acceptable answers.

Task sets are YAML files of this package or files of your own, in the same form. A set is checked as
a whole when it is read: duplicate ids, calls of tools that a task lacks, and documents that do not
exist are errors.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hf_rlhf.errors import DataError
from hf_rlhf_agents.calculator import calculate

Tier = Literal["easy", "medium", "hard"]
Scored = Literal["text", "number", "refusal", "gaia", "cases"]
ARGUMENTS = {
    **{"search": {"query"}, "read": {"title"}, "calculate": {"expression"}},
    "lookup": {"relation", "name"},
}
"""The arguments of each tool."""
SETS = ("agentbench_mini", "gaia_mini", "code_repair", "practice")
"""Names of the sets in this package; `chains` makes tasks of any length."""

GAIA = (
    "GAIA itself is gated and its tools need Docker, so inspect_ai runs it: accept its terms on "
    "the Hub, set HF_TOKEN, and run `inspect eval inspect_evals/gaia --model MODEL` (with "
    "`-T subset=2023_level1` for a level). `hf-rlhf agents table` reads its log. The set gaia_mini "
    "has 30 tasks of its form."
)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Call(_Form):
    """An expected call. A list as an argument contains the words that the argument must have."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    def allows(self, tool: str, arguments: Any) -> bool:
        """Return whether a call is this one; further arguments are allowed."""
        if tool != self.tool or not isinstance(arguments, dict):
            return False
        fits = _same_value if tool == "calculate" else _fits
        return all(
            name in arguments and fits(wanted, arguments[name])
            for name, wanted in self.arguments.items()
        )


class Case(_Form):
    """A hidden assertion on repaired code: an expression, and its value as JSON."""

    expression: str
    value: Any = None
    raises: str = ""
    """Name of the expected exception, instead of a value."""


class Task(_Form):
    """A task, with all that is needed to score it."""

    id: str = Field(min_length=1)
    category: str = Field(min_length=1)
    tier: Tier = "easy"
    question: str = Field(min_length=1)
    scored: Scored = "text"
    """Rule for the answer; `refusal` expects the agent to say that it cannot answer."""
    answers: tuple[str, ...] = ()
    """Acceptable answers, the best form first."""
    tools: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    """Expected calls, in sequence."""
    fails: dict[str, str] = Field(default_factory=dict)
    """Tool, or `tool: argument`, -> the error that it raises in this task."""
    documents: dict[str, str] = Field(default_factory=dict)
    """Documents of this task alone, beside those of the set."""
    files: dict[str, str] = Field(default_factory=dict)
    """Attachments: name -> text."""
    facts: int | None = None
    """Seed of the world that `lookup` answers from."""
    function: str = ""
    """Name of the function to repair."""
    code: str = ""
    """The broken function."""
    cases: tuple[Case, ...] = ()
    """Hidden assertions, which never enter the sandbox with their values."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        unknown = {call.tool for call in self.calls} - set(self.tools)
        if unknown:
            raise ValueError(f"calls: {', '.join(sorted(unknown))} is not among the tools")
        if self.scored == "cases":
            if not (self.code and self.function and self.cases):
                raise ValueError("scored by cases, which needs code, function and cases")
        elif self.scored == "refusal":
            if self.answers or not self.calls:
                raise ValueError("a refusal has no answers, and calls that must be tried first")
        elif not self.answers:
            raise ValueError("answers: at least one is needed")
        if self.scored == "number" and any(number(each) is None for each in self.answers):
            raise ValueError(f"answers: not all are numbers: {', '.join(self.answers)}")
        return self


class TaskSet(_Form):
    """A set of tasks, and the documents that they share."""

    name: str
    documents: dict[str, str] = Field(default_factory=dict)
    tasks: tuple[Task, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        counts = Counter(task.id for task in self.tasks)
        twice = sorted(each for each, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"ids occur twice: {', '.join(twice)}")
        for task in self.tasks:
            unknown = set(task.tools) - set(ARGUMENTS)
            if unknown:
                raise ValueError(f"{task.id}: no tool is named {', '.join(sorted(unknown))}")
            known = self.documents | task.documents | task.files
            if "lookup" in task.tools and task.facts is None:
                raise ValueError(f"{task.id}: lookup needs `facts`, the seed of a world")
            for call in task.calls:
                if call.arguments.keys() != ARGUMENTS[call.tool]:
                    names = ", ".join(sorted(ARGUMENTS[call.tool]))
                    raise ValueError(f"{task.id}: a call of {call.tool} has the arguments {names}")
                title = call.arguments.get("title")
                fails = f"read: {title}" in task.fails or "read" in task.fails
                if call.tool == "read" and title not in known and not fails:
                    raise ValueError(f"{task.id}: reads {title!r}, which is no document")
        return self

    def of(self, task: Task) -> Task:
        """Return the task with the documents of the set."""
        return task.model_copy(update={"documents": {**self.documents, **task.documents}})


def read_set(name: str) -> TaskSet:
    """Return a set by name, or from a YAML file. Raises DataError with file, task and field."""
    path = Path(name)
    if name == "gaia":
        raise DataError(GAIA)
    if name in SETS:
        text = files("hf_rlhf_agents").joinpath(f"sets/{name}.yaml").read_text(encoding="utf-8")
    elif path.suffix in (".yaml", ".yml") and path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        raise DataError(f"{name} is no set of tasks. Known: {', '.join(SETS)}, or a YAML file.")
    try:
        return TaskSet.model_validate({"name": path.stem, **yaml.safe_load(text)})
    except ValidationError as error:
        raise DataError(f"{name}: {_problems(error, yaml.safe_load(text))}") from error
    except (yaml.YAMLError, TypeError) as error:
        raise DataError(f"{name}: not a set of tasks: {error}") from error


def select(
    tasks: Iterable[Task],
    categories: Sequence[str] = (),
    tiers: Sequence[str] = (),
    max_per_category: int | None = None,
    half: Literal["all", "train", "test"] = "all",
) -> list[Task]:
    """Return the chosen tasks, in their sequence.

    Halves alternate within each category. Raises DataError for an unknown category or tier, and if
    nothing is left.
    """
    tasks = list(tasks)
    for wanted, known, what in (
        (categories, {task.category for task in tasks}, "category"),
        (tiers, {task.tier for task in tasks}, "tier"),
    ):
        if unknown := set(wanted) - known:
            names = f"Known: {', '.join(sorted(known))}."
            raise DataError(f"unknown {what}: {', '.join(sorted(unknown))}. {names}")
    seen: Counter[str] = Counter()
    taken: defaultdict[str, int] = defaultdict(int)
    chosen = []
    for task in tasks:
        of_half = half == "all" or (seen[task.category] % 2 == 0) == (half == "train")
        seen[task.category] += 1
        fits = (not categories or task.category in categories) and (not tiers or task.tier in tiers)
        full = max_per_category is not None and taken[task.category] >= max_per_category
        if of_half and fits and not full:
            taken[task.category] += 1
            chosen.append(task)
    if not chosen:
        raise DataError("no task is left after the choice of categories, tiers and half.")
    return chosen


def number(text: str) -> float | None:
    """Return the number that a text is, without separators of thousands, currency or percent."""
    plain = text.strip().rstrip(".%").lstrip("$€£").strip()
    if not re.fullmatch(r"[+-]?(\d+|\d{1,3}([, ]\d{3})+)(\.\d+)?(e[+-]?\d{1,2})?", plain, re.ASCII):
        return None
    return float(re.sub("[, ]", "", plain))


def normal(text: str) -> str:
    """Return a text without case, punctuation at its ends, articles and double spaces."""
    words = re.sub(r"[\"'“”‘’()\[\]]", "", text.casefold()).strip(" .,;:!?").split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def _fits(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, list):
        words = set(re.findall(r"[\w.]+", str(given).casefold()))
        return all(str(word).casefold() in words for word in wanted)
    if isinstance(wanted, str):
        same = number(wanted) is not None and number(wanted) == number(str(given))
        return same or normal(wanted).replace(" ", "") == normal(str(given)).replace(" ", "")
    return bool(wanted == given)


def _same_value(wanted: Any, given: Any) -> bool:
    try:
        return calculate(str(wanted)) == calculate(str(given))
    except ValueError:
        return _fits(wanted, given)


def _problems(error: ValidationError, content: Any) -> str:
    """Return the first problems, each with the id of its task."""
    lines = []
    for each in error.errors()[:5]:
        where = list(each["loc"])
        if where[:1] == ["tasks"] and len(where) > 1:
            task = content["tasks"][where[1]]
            where[:2] = [f"task {task.get('id', where[1]) if isinstance(task, dict) else where[1]}"]
        place = ".".join(str(part) for part in where)
        lines.append(f"{place + ': ' if place else ''}{each['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)
