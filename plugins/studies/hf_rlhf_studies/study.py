"""A study file: conditions, seeds, measurements, questions. Read and checked as a whole."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, Problem, suggest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*")
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.:/+=-]*)\}")
"""`{seed}`, `{weights:sft3}`: the innermost ones, so that one may stand within another."""


Locate = Callable[[Sequence[str | int]], str]
"""Tells where a key was written."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Condition(_Part):
    """One way of training, or of preparing a model; its runs differ by their seed alone."""

    label: str = ""
    like: str | None = None
    """A condition whose keys this one has, but for its own; its `settings` are added to."""
    start: str | None = Field(None, alias="from")
    """The condition whose weights it begins with, or a model. None: what the settings name."""
    settings: dict[str, Any] = {}
    """Value by dotted key, over the study's run file."""
    settings_file: str | None = None
    """A JSON file of further settings, which a preparation writes."""
    values: dict[str, Any] = {}
    """For placeholders in commands and settings."""
    placeholders: bool = True
    """False: braces in its settings are text."""
    blocks: list[str] | None = None
    seeds: list[int] | None = None
    trained: bool = True
    """False: `from` is measured as it is."""


class Preparation(_Part):
    """Commands that make what runs read: once, for each seed, or for each block and seed."""

    per: Literal["study", "seed", "block"] = "seed"
    after: list[str] = []
    """Conditions and preparations that come first."""
    commands: list[list[str]]


class Question(_Part):
    """Two conditions to compare by one metric, or one with its start."""

    name: str = ""
    condition: str
    against: str | None = None
    """None: the condition's start, or the same model before training."""
    metric: str
    predicted: Literal["higher", "lower"] | None = None
    of: Literal["value", "gain"] = "value"
    """`gain`: what each gained over its own start is compared."""
    blocks: list[str] | None = None


class Control(_Part):
    """A planted failure: one metric should rise over the start while another falls, or not."""

    name: str = ""
    condition: str
    rises: str
    """A metric; with a minus in front, its negative."""
    falls: str
    expected: bool = True
    blocks: list[str] | None = None


class StudyFile(_Part):
    """The content of a study file."""

    schema_: Literal[1] = Field(1, alias="schema")
    title: str
    plan: str | None = None
    """A text beside the study file, recorded at the first run."""
    seeds: list[int] = Field(min_length=1)
    blocks: dict[str, dict[str, Any]] = {"": {}}
    """What all conditions are repeated for; the values of each for placeholders."""
    run: str | dict[str, Any]
    """A run file, a trainer whose default one is taken, or a run file's content."""
    settings: dict[str, Any] = {}
    conditions: dict[str, Condition] = Field(min_length=1)
    prepare: dict[str, Preparation] = {}
    measure: list[list[str]] | None = None
    """Commands that write `{out}`. None: the run's own held-out evaluation."""
    held_out_rows: Literal["shared", "by_seed"] = "shared"
    """Whether all seeds are measured on the same rows."""
    resample: Literal["rows", "seeds_and_rows"] = "seeds_and_rows"
    """What the bootstrap draws."""
    decision: Literal["intervals", "signs"] = "intervals"
    metrics: list[str] = []
    """For the tables; all if empty."""
    reference: str | None = None
    """The condition that every other is compared with in the tables; None: each one's start."""
    questions: list[Question] = []
    controls: list[Control] = []


@dataclass(frozen=True)
class Cell:
    """One condition in one block with one seed: one run."""

    block: str
    condition: str
    seed: int

    @property
    def folder(self) -> str:
        """Where its run lies, relative to the study's output folder."""
        return "/".join([*filter(None, (self.block, self.condition)), f"seed-{self.seed}"])


@dataclass(frozen=True)
class Study:
    """A checked study file, and where it lies."""

    file: StudyFile
    source: Path

    @classmethod
    def read(cls, path: Path) -> "Study":
        """Read a study file. Raises ConfigError with all that is wrong with it."""
        document = RunFile.read(path)
        return cls.parse(document.values, path, document.where, document.problems)

    @classmethod
    def parse(
        cls,
        values: Mapping[str, Any],
        source: Path,
        where: Locate | None = None,
        problems: Sequence[Problem] = (),
    ) -> "Study":
        """Check a study's content; `where` locates a key. Raises ConfigError."""
        locate = where or (lambda path: ".".join(map(str, path)))
        try:
            file = StudyFile.model_validate(dict(values))
        except ValidationError as error:
            result = [_problem(item, locate) for item in error.errors(include_url=False)]
            raise ConfigError([*problems, *result]) from None
        result = list(_problems(file, locate))
        if problems or result:
            raise ConfigError([*problems, *result])
        conditions = {name: _inherited(file, name) for name in file.conditions}
        return cls(file.model_copy(update={"conditions": conditions}), source)

    def cells(self, seeds: Sequence[int] = ()) -> list[Cell]:
        """Return all cells, seed by seed: a study that is stopped has compared something."""
        known = {*self.file.seeds}.union(*(c.seeds or () for c in self.file.conditions.values()))
        ordered = [*self.file.seeds, *sorted(known - {*self.file.seeds})]
        return [
            Cell(block, name, seed)
            for seed in ordered
            if not seeds or seed in seeds
            for block in self.file.blocks
            for name, condition in self.file.conditions.items()
            if seed in (condition.seeds or self.file.seeds)
            and block in (condition.blocks or self.file.blocks)
        ]

    def label(self, condition: str) -> str:
        """Return what tables call a condition."""
        return self.file.conditions[condition].label or condition


def _inherited(file: StudyFile, name: str) -> Condition:
    condition = file.conditions[name]
    if condition.like is None:
        return condition
    parent = _inherited(file, condition.like)
    own = {key: getattr(condition, key) for key in condition.model_fields_set}
    own["settings"] = {**parent.settings, **condition.settings}
    own["values"] = {**parent.values, **condition.values}
    return parent.model_copy(update={**own, "label": condition.label, "like": None})


def _problems(file: StudyFile, locate: Locate) -> Iterator[Problem]:
    at: tuple[str | int, ...]
    names = list(file.conditions)
    for key in [*names, *file.blocks, *file.prepare]:
        if key and not NAME.fullmatch(key):
            fix = "Use letters, digits and `_ . = + -`: it names a folder."
            yield Problem(locate(("conditions", key)), f"{key!r} is not a name.", fix)
    for name, condition in file.conditions.items():
        at = ("conditions", name)
        yield from _unknown(locate, (*at, "like"), condition.like, names)
        if not condition.trained and condition.start is None:
            yield Problem(locate(at), "is not trained and has no `from`.", "Name a model.")
        yield from _unknown_blocks(locate, at, condition.blocks, file)
    yield from _circles(file, locate)
    for number, question in enumerate(file.questions):
        at = ("questions", number)
        for key in ("condition", "against"):
            yield from _unknown(locate, (*at, key), getattr(question, key), names)
        yield from _unknown_blocks(locate, at, question.blocks, file)
    for number, control in enumerate(file.controls):
        yield from _unknown(locate, ("controls", number, "condition"), control.condition, names)
    for name, preparation in file.prepare.items():
        for item in preparation.after:
            at = ("prepare", name, "after")
            yield from _unknown(locate, at, item, [*names, *file.prepare])


def _circles(file: StudyFile, locate: Locate) -> Iterator[Problem]:
    for key in ("like", "start"):
        for name in file.conditions:
            visited, current = [name], getattr(file.conditions[name], key)
            while current in file.conditions and current not in visited:
                visited.append(current)
                current = getattr(file.conditions[current], key)
            if current == name:
                displayed = "from" if key == "start" else key
                what = f"begins with itself: {' -> '.join([*visited, name])}."
                yield Problem(locate(("conditions", name, displayed)), what)


def _unknown(
    locate: Locate,
    path: Sequence[str | int],
    name: str | None,
    known: Sequence[str],
) -> Iterator[Problem]:
    if name is not None and name not in known:
        guess = suggest(name, known)
        fix = f"Did you mean `{guess}`?" if guess else f"There are: {', '.join(known)}."
        yield Problem(locate(path), f"`{name}` does not exist.", fix)


def _unknown_blocks(
    locate: Locate,
    path: Sequence[str | int],
    blocks: Sequence[str] | None,
    file: StudyFile,
) -> Iterator[Problem]:
    for block in blocks or ():
        yield from _unknown(locate, (*path, "blocks"), block, list(file.blocks))


def _problem(error: Any, locate: Locate) -> Problem:
    """Turn one of pydantic's errors into a problem, with a near name for an unknown key."""
    path = [part for part in error["loc"] if part not in ("str", "dict[str,any]")]
    if error["type"] == "extra_forbidden":
        model: dict[str, type[_Part]] = {
            "conditions": Condition,
            "prepare": Preparation,
            "questions": Question,
        }
        model |= {"controls": Control}
        fields = (model.get(str(path[0]), StudyFile) if len(path) > 1 else StudyFile).model_fields
        known = [field.alias or name for name, field in fields.items()]
        guess = suggest(str(path[-1]), known)
        fix = f"Did you mean `{guess}`?" if guess else f"Keys: {', '.join(known)}."
        return Problem(locate(path), f"`{path[-1]}` is not a key of a study here.", fix)
    return Problem(locate(path), f"{error['msg'][0].lower()}{error['msg'][1:]}.")
