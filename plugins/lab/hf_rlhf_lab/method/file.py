"""A method file: criteria, graded responses, candidate signals, and how the reward is tried."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel, ConfigDict, Field

from hf_rlhf.config import InvalidValue, RunFile, choose_run_file, load_yaml, validate
from hf_rlhf.errors import ConfigError, Problem

_SET_HERE = ("weight", "clip", "transform")
"""Keys of a `rewards` entry that the method sets."""
_WAYS = ("name", "judge", "column")
Share = Annotated[float, Gt(0), Lt(1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Criterion(_Section):
    """What makes a response good, and how responses are graded by it."""

    means: str = Field(min_length=1)
    """In words, for readers and for a judge."""
    grade: dict[str, Any]
    """`{name: REWARD}` with its arguments, `{judge: LABEL}`, or `{column: NAME}` of the data."""
    weight: Annotated[float, Gt(0)] = 1.0


class Calibration(_Section):
    """Which signals are kept: rho above `min_rho`, with its 95% interval above 0."""

    min_rho: Annotated[float, Ge(0), Lt(1)] = 0.10


class Weights(_Section):
    """The split by prompts on which weights are fitted, and tested."""

    test_share: Share = 0.5
    seed: int = 0


class RewardModel(_Section):
    """A reward model to train on pairs that the weighted signals label."""

    run: str = "reward"
    """A trainer, whose default run file is taken, or a run file."""
    settings: dict[str, Any] = {}
    """Value by dotted key, over the run file."""


class Validation(_Section):
    """The checks of `hf-rlhf rewards validate` that have to pass, and the attacks that it tries."""

    require: list[str] = ["agreement", "length", "hacks", "abstentions"]
    attacks: list[str] = ["text_attacks"]


class Survival(_Section):
    """A short training on the reward, in which the grade is watched and not trained on."""

    run: str
    settings: dict[str, Any] = {}
    min_rho: Annotated[float, Ge(0), Lt(1)] = 0.10
    """Of reward and grade on the trained policy's samples; its interval must be above 0, too."""


class MethodFile(_Section):
    """The content of a method file."""

    schema_: Literal[1] = Field(1, alias="schema")
    title: str = "The reward"
    dataset: dict[str, Any]
    """The responses: preference pairs, or rows with `grade` (the adapter `graded`)."""
    split: str = "train"
    rows: Annotated[int, Ge(30)] | None = None
    """At most so many prompts, drawn at random."""
    judges: dict[str, Any] = {}
    criteria: dict[str, Criterion] = Field(min_length=1)
    signals: list[dict[str, Any]] = Field(min_length=1)
    """Entries as in `rewards` of a run file, without weights."""
    calibration: Calibration = Calibration()
    weights: Weights = Weights()
    reward_model: RewardModel | None = None
    """None: the weighted signals are the reward."""
    validation: Validation = Validation()
    survival: Survival | None
    """None, which has to be written: the reward is not tried in a training."""


@dataclass(frozen=True)
class Method:
    """A checked method file, and where each key was written."""

    spec: MethodFile
    document: RunFile

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str] = ()) -> "Method":
        """Read a file. Raises ConfigError with every problem in it."""
        document = RunFile.read(path).override(overrides)
        problems = list(document.problems)
        # With whole paths of FILE.py:NAME, since the composition is used in other files.
        values = load_yaml(document.to_yaml(), document.name).value
        try:
            spec: MethodFile = validate(values, MethodFile)
        except InvalidValue as error:
            problems += [Problem(document.where(at), text) for at, text in error.errors]
            raise ConfigError(problems, subject="method") from None
        problems += [problem for problem in _problems(spec, document)]
        if problems:
            raise ConfigError(problems, subject="method")
        return cls(spec, document)

    def graders(self) -> list[dict[str, Any]]:
        """Return an entry of weight 0 for each criterion that can grade a new response."""
        entries = []
        for name, criterion in self.spec.criteria.items():
            if "judge" in criterion.grade:
                rubric = {"name": "criterion", "criterion": criterion.means}
                entries.append({"label": name, "weight": 0.0, **rubric, **criterion.grade})
            elif "name" in criterion.grade:
                entries.append({"label": name, "weight": 0.0, **criterion.grade})
        return entries

    def scoring_file(self) -> RunFile:
        """Return a run file whose rewards are the signals, and then the graders."""
        values: dict[str, Any] = {
            "schema": 1,
            "dataset": self.spec.dataset,
            "judges": self.spec.judges,
            "rewards": [*self.spec.signals, *self.graders()],
        }
        if self.spec.survival is not None:  # whose chat template decides the form of the rows
            policy = self.training_file(self.spec.survival).values.get("model_name_or_path")
            values["model_name_or_path"] = policy
        paths = {("signals", at): ("rewards", at) for at in range(len(self.spec.signals))}
        for at, entry in enumerate(self.graders(), len(self.spec.signals)):
            paths["criteria", entry["label"], "grade"] = ("rewards", at)
        lines = dict(self.document.lines)
        for old, new in paths.items():
            inner = {at: line for at, line in lines.items() if at[: len(old)] == old}
            lines |= {(*new, *at[len(old) :]): line for at, line in inner.items()}
        return replace(self.document, values=values, lines=lines, overrides={})

    def renamed(self, error: ConfigError) -> ConfigError:
        """Return an error of the scoring file with the keys of the method file."""
        names = [f"signals.{at}" for at in range(len(self.spec.signals))]
        names += [f"criteria.{entry['label']}.grade" for entry in self.graders()]

        def key(match: re.Match[str]) -> str:
            return names[int(match[1])]

        problems = [
            replace(problem, where=re.sub(r"\brewards\.(\d+)", key, problem.where))
            for problem in error.problems
        ]
        return ConfigError(problems, subject="method")

    def training_file(self, section: RewardModel | Survival, **values: Any) -> RunFile:
        """Return the run file of a training, with some of its sections replaced."""
        if section.run.endswith((".yaml", ".yml")):
            base = RunFile.read(self.document.folder / section.run)
        else:
            base = choose_run_file(section.run, None, None)
        options = [f"--{key}={json.dumps(value)}" for key, value in section.settings.items()]
        # The card and the repository of the run file are not those of a trial.
        kept = {k: v for k, v in base.values.items() if k not in ("card", "publish")}
        plugin = base.plugin or section.run
        file = replace(base, values={**kept, "plugin": plugin}, shipped=None).override(options)
        return replace(file, values={**file.values, **values})


def _problems(spec: MethodFile, document: RunFile) -> Any:
    for at, entry in enumerate(spec.signals):
        for key in _SET_HERE:
            if key in entry:
                what = "is set by the method, from the grades."
                yield Problem(document.where(("signals", at, key)), what, "Remove it.")
    for name, criterion in spec.criteria.items():
        path = ("criteria", name, "grade")
        ways = [way for way in _WAYS if way in criterion.grade]
        if len(ways) != 1 and ways != ["name", "judge"]:
            what = f"names {', '.join(ways) or 'no way'}: expected one way to grade a response."
            fix = "Write {name: REWARD}, {judge: LABEL} or {column: NAME}."
            yield Problem(document.where(path), what, fix)
        if ways == ["column"] and spec.survival is not None:
            what = "is a column, which the responses of a policy in training do not have."
            fix = "Grade by a reward or a judge, or write `survival: null`."
            yield Problem(document.where(path), what, fix)
        if ways == ["judge"] and criterion.grade["judge"] not in spec.judges:
            what = f"no judge is labelled {criterion.grade['judge']!r}."
            fix = f"Declare it under `judges`. Labels: {', '.join(spec.judges) or 'none'}."
            yield Problem(document.where((*path, "judge")), what, fix)
