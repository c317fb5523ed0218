"""A study file: conditions, seeds, measurements, questions. Read and checked as a whole."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hf_rlhf.config import InvalidValue, RunFile, validate
from hf_rlhf.errors import ConfigError, Problem, suggest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*")
PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.:/+=-]*)\}")
"""`{seed}`, `{weights:sft3}`: the innermost ones, so that one may stand within another."""
GIVEN = {
    "output_dir": "Leave it out: `--out DIR` holds a folder for each run.",
    "seed": "Leave it out: `seeds` gives each run its seed.",
}
"""Settings of a run that its study sets -> the cure."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class AdapterOf(_Section):
    """A start with the LoRA adapter of a condition, on the base of that condition."""

    adapter: str
    """A condition, or a folder."""


class Condition(_Section):
    """A way of training, or of preparing a model; its runs differ by their seed alone."""

    label: str = ""
    like: str | None = None
    """A condition whose keys this one has, unless it sets them; `settings` and `values` are added
    to that one's."""
    begins: str | AdapterOf | None = Field(None, alias="from")
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

    @property
    def start(self) -> str | None:
        """The condition or model that it begins with, merged or as an adapter."""
        return self.begins.adapter if isinstance(self.begins, AdapterOf) else self.begins


class Preparation(_Section):
    """Commands that make what runs read: once, for each seed, or for each block and seed."""

    per: Literal["study", "seed", "block"] = "seed"
    after: list[str] = []
    """Conditions and preparations that come first."""
    commands: list[list[str]]


class Question(_Section):
    """Two conditions to compare by a metric, or a condition with its start."""

    name: str = ""
    condition: str
    against: str | None = None
    """None: the condition's start, or the same model before training."""
    metric: str
    predicted: Literal["higher", "lower"] | None = None
    of: Literal["value", "gain"] = "value"
    """`gain`: what each gained over its own start is compared."""


class Control(_Section):
    """A planted failure: a metric should rise over the start while another falls, or not."""

    condition: str
    rises: str
    """A metric; with a minus in front, its negative."""
    falls: str
    expected: bool = True


class MetIf(_Section):
    """What meets a failure criterion: a mean beyond a bound, or a prediction that fails."""

    condition: str = ""
    against: str | None = None
    """None: the mean itself, not a difference."""
    metric: str = ""
    above: float | None = None
    below: float | None = None
    not_shown: str | None = None
    """The name of questions with a prediction, in place of the above."""
    block: str | None = None
    """None: all."""


class Criterion(_Section):
    """A sentence of the plan that says what would count as failure."""

    quote: str
    """Word for word."""
    met_if: list[MetIf] = []
    """Any of these."""
    outcome: Literal["met", "not met", "not decidable"] | None = None
    """For what the rows cannot compute; the note tells by which numbers."""
    note: str = ""


class StudyFile(_Section):
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
    """A condition that every other is compared with, by each of the metrics."""
    questions: list[Question] = []
    controls: list[Control] = []
    criteria: list[Criterion] = []
    """Every sentence of the plan that says what would count as failure."""


@dataclass(frozen=True)
class Cell:
    """A condition in a block with a seed: a run."""

    block: str
    condition: str
    seed: int

    @property
    def folder(self) -> str:
        """The folder of its run, relative to the study's output folder."""
        return "/".join([*filter(None, (self.block, self.condition)), f"seed-{self.seed}"])


@dataclass(frozen=True)
class Study:
    """A checked study file, and its path."""

    file: StudyFile
    source: Path

    @classmethod
    def read(cls, path: Path) -> "Study":
        """Read a study file. Raises ConfigError with every problem in it."""
        return cls.parse(RunFile.read(path), path)

    @classmethod
    def parse(cls, document: RunFile, source: Path) -> "Study":
        """Check the content of a study file. Raises ConfigError with every problem in it."""
        problems = list(document.problems)
        try:
            file: StudyFile = validate(document.values, StudyFile)
        except InvalidValue as error:
            problems += [Problem(document.where(path), text) for path, text in error.errors]
            raise ConfigError(problems) from None
        if problems := [*problems, *_problems(file, document)]:
            raise ConfigError(problems)
        conditions = {name: _inherited(file, name) for name in file.conditions}
        return cls(file.model_copy(update={"conditions": conditions}), source)

    def cells(self, seeds: Sequence[int] = ()) -> list[Cell]:
        """Return all cells, seed by seed: a study that is stopped early can still compare."""
        file = self.file
        every_seed = {*file.seeds}.union(*(c.seeds or () for c in file.conditions.values()))
        ordered = [*file.seeds, *sorted(every_seed - {*file.seeds})]
        return [
            Cell(block, name, seed)
            for seed in ordered
            if not seeds or seed in seeds
            for block in file.blocks
            for name, condition in file.conditions.items()
            if seed in (condition.seeds or file.seeds)
            and block in (condition.blocks or file.blocks)
        ]

    def label(self, condition: str) -> str:
        """Return the name of a condition in tables."""
        return self.file.conditions[condition].label or condition

    def title(self, cell: Cell) -> str:
        """Return the name of a cell's condition in messages, with its block."""
        label = self.label(cell.condition)
        return f"{cell.block}, {label}" if cell.block else label


def _inherited(file: StudyFile, name: str) -> Condition:
    condition = file.conditions[name]
    if condition.like is None:
        return condition
    parent = _inherited(file, condition.like)
    changes = {key: getattr(condition, key) for key in condition.model_fields_set}
    changes["settings"] = {**parent.settings, **condition.settings}
    changes["values"] = {**parent.values, **condition.values}
    return parent.model_copy(update={**changes, "label": condition.label, "like": None})


def _given(file: StudyFile) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the section and name of each setting that the study would override."""
    sections: dict[tuple[str, ...], Any] = {("settings",): file.settings}
    for name, condition in file.conditions.items():
        sections["conditions", name, "settings"] = condition.settings
    sections["run",] = {"output_dir"}.intersection(file.run) if isinstance(file.run, dict) else ()
    yield from ((path, key) for path, keys in sections.items() for key in GIVEN if key in keys)


def _problems(file: StudyFile, document: RunFile) -> Iterator[Problem]:
    where = document.where
    for parts, key in _given(file):
        yield Problem(where((*parts, key)), "is set by the study.", GIVEN[key])
    for section in ("conditions", "blocks", "prepare"):
        for key in getattr(file, section):
            if key and not NAME.fullmatch(key):
                fix = "Use letters, digits and `_ . = + -`: it names a folder."
                yield Problem(where((section, key)), f"{key!r} is not a name.", fix)
    for name, condition in file.conditions.items():
        if not condition.trained and not isinstance(condition.begins, str):
            what = "is not trained and has no model as `from`."
            yield Problem(where(("conditions", name)), what, "Name a model.")
        if circle := _circle(file, name):
            yield Problem(where(("conditions", name)), f"depends on itself: {circle}.")
    whats = map(_criterion_problem, file.criteria)
    yield from (Problem(where(("criteria", at)), what) for at, what in enumerate(whats) if what)
    for path, used, names in _references(file):
        if used and used not in names:
            guess = suggest(used, names)
            fix = f"Did you mean `{guess}`?" if guess else f"Choose from: {', '.join(names)}."
            yield Problem(where(path), f"`{used}` does not exist.", fix)


def _criterion_problem(criterion: Criterion) -> str:
    """Return what is wrong with a failure criterion; empty if nothing."""
    if bool(criterion.met_if) == (criterion.outcome is not None):
        return "needs either `met_if` or `outcome`."
    if criterion.outcome and not criterion.note:
        return "has an `outcome` that no row tells; it needs a `note` with the numbers."
    for test in criterion.met_if:
        if sum(each is not None for each in (test.above, test.below, test.not_shown)) != 1:
            return "`met_if` needs one of `above`, `below` and `not_shown`."
        if test.not_shown is None and not (test.condition and test.metric):
            return "`met_if` with a bound needs a `condition` and a `metric`."
    return ""


def _references(file: StudyFile) -> Iterator[tuple[tuple[str | int, ...], str | None, list[str]]]:
    """Yield each name of a condition, block or the like that a key has, and the valid names."""
    conditions, blocks = list(file.conditions), list(file.blocks)
    predicted = [each.name for each in file.questions if each.name and each.predicted]
    yield ("reference",), file.reference, conditions
    for name, condition in file.conditions.items():
        yield ("conditions", name, "like"), condition.like, conditions
        for block in condition.blocks or ():
            yield ("conditions", name, "blocks"), block, blocks
    for name, preparation in file.prepare.items():
        for step in preparation.after:
            yield ("prepare", name, "after"), step, [*conditions, *file.prepare]
    valid = {"condition": conditions, "against": conditions, "block": blocks}
    places: list[tuple[tuple[str | int, ...], _Section]] = [
        *((("questions", at), each) for at, each in enumerate(file.questions)),
        *((("controls", at), each) for at, each in enumerate(file.controls)),
        *(
            (("criteria", number, "met_if", at), test)
            for number, criterion in enumerate(file.criteria)
            for at, test in enumerate(criterion.met_if)
        ),
    ]
    for path, each in places:
        for key, names in {**valid, "not_shown": predicted}.items():
            yield (*path, key), getattr(each, key, None), names


def _circle(file: StudyFile, name: str) -> str:
    """Return the path by which a condition is like itself or begins with itself; empty if none."""
    for key in ("like", "start"):
        path, current = [name], getattr(file.conditions[name], key)
        while current in file.conditions and current not in path:
            path.append(current)
            current = getattr(file.conditions[current], key)
        if current == name:
            return " -> ".join([*path, name])
    return ""
