"""Read a method file: criteria, graded responses, candidate signals, and the trial."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import BaseModel, ConfigDict, Field

from hf_rlhf.config import InvalidValue, KeyPath, RunFile, choose_run_file, load_yaml, validate
from hf_rlhf.errors import ConfigError, Problem

_OF_THE_METHOD = ("weight", "clip", "transform")
"""Keys of a `rewards` entry that the method determines."""
_NOT_OF_A_TRIAL = ("card", "publish", "output_dir", "reward_validation")
"""Keys of a run file that a short trial does not inherit."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Criterion(_Section):
    """A criterion for responses and the way to grade it."""

    means: str = Field(min_length=1)
    """Description for readers and for a judge."""
    grade: dict[str, Any] | Literal["data"]
    """A `rewards` entry, a judge (`{judge: LABEL}`), or the data's own grades."""
    weight: Annotated[float, Gt(0)] = 1.0


class Training(_Section):
    """A training run of the method."""

    run: str
    """A run file, or a trainer whose default run file is used."""
    settings: dict[str, Any] = {}
    """Dotted key -> value, overriding the run file."""


class MethodFile(_Section):
    """The content of a method file."""

    schema_: Literal[1] = Field(1, alias="schema")
    title: str = "The reward"
    dataset: dict[str, Any]
    """The responses: preference pairs, or rows of the adapter `graded`."""
    split: str = "train"
    rows: Annotated[int, Ge(1)] | None = None
    """Maximum number of prompts, drawn at random."""
    judges: dict[str, Any] = {}
    criteria: dict[str, Criterion] = Field(min_length=1)
    """The criteria; a response's grade is the weighted sum of their grades."""
    signals: list[dict[str, Any]] = Field(min_length=1)
    """Entries for `rewards` of a run file, without weights."""
    min_rho: Annotated[float, Ge(0), Lt(1)] = 0.10
    """Minimum rank correlation with the grade: of a signal, of the weighted sum on the test
    prompts, and of the reward after training on it. The 95% interval must also lie above 0."""
    test_share: Annotated[float, Gt(0), Lt(1)] = 0.5
    """Share of the prompts for testing the weights; the rest select and fit them."""
    seed: int = 0
    require: list[str] = ["agreement", "length", "hacks", "abstentions"]
    """Checks of `hf-rlhf rewards validate` that must pass."""
    attacks: list[str] = ["text_attacks"]
    survival: Training | None
    """A short training run on the reward. An explicit None skips the trial."""


@dataclass(frozen=True)
class Method:
    """A checked method file with the location of each key."""

    spec: MethodFile
    document: RunFile

    @classmethod
    def read(cls, path: Path, overrides: Sequence[str] = ()) -> "Method":
        """Read a file. Raises ConfigError with every problem in it."""
        document = RunFile.read(path).override(overrides)
        problems = list(document.problems)
        # FILE.py:NAME gets a full path because other files use the reward.
        values = load_yaml(document.to_yaml(), document.name).value
        try:
            spec: MethodFile = validate(values, MethodFile)
        except InvalidValue as error:
            problems += [Problem(document.where(at), text) for at, text in error.errors]
            raise ConfigError(problems, subject="method") from None
        for at, entry in enumerate(spec.signals):
            for key in [key for key in _OF_THE_METHOD if key in entry]:
                what = "is found by the method, from the grades."
                problems.append(Problem(document.where(("signals", at, key)), what, "Remove it."))
        for name, criterion in spec.criteria.items():
            if criterion.grade == "data" and spec.survival is not None:
                what = "is `data`, which has no grades of the responses of a policy in training."
                fix = "Grade by a reward or a judge, or write `survival: null`."
                problems.append(Problem(document.where(("criteria", name, "grade")), what, fix))
        if problems:
            raise ConfigError(problems, subject="method")
        return cls(spec, document)

    def graders(self) -> list[dict[str, Any]]:
        """Return an entry of weight 0 for each criterion that can grade a new response."""
        return [
            {
                "label": name,
                "weight": 0.0,
                **({"criterion": each.means} if "name" not in each.grade else {}),
                **{"name": "criterion", **each.grade},
            }
            for name, each in self.spec.criteria.items()
            if isinstance(each.grade, dict)
        ]

    def scoring_file(self) -> RunFile:
        """Return a run file whose rewards are the signals, and then the graders."""
        values: dict[str, Any] = {
            "schema": 1,
            "dataset": self.spec.dataset,
            "judges": self.spec.judges,
            "rewards": [*self.spec.signals, *self.graders()],
        }
        if self.spec.survival is not None:  # its chat template decides the form of the rows
            policy = self.training_file(self.spec.survival).values.get("model_name_or_path")
            values["model_name_or_path"] = policy
        lines = dict(self.document.lines)
        for number, path in enumerate(self._reward_paths()):
            inner = {at: line for at, line in lines.items() if at[: len(path)] == path}
            lines |= {("rewards", number, *at[len(path) :]): line for at, line in inner.items()}
        return replace(self.document, values=values, lines=lines, overrides={})

    def _reward_paths(self) -> list[KeyPath]:
        """Return the locations of the scoring file's rewards."""
        signals: list[KeyPath] = [("signals", at) for at in range(len(self.spec.signals))]
        return signals + [("criteria", entry["label"], "grade") for entry in self.graders()]

    def renamed(self, error: ConfigError) -> ConfigError:
        """Return an error in the scoring file with the method file's keys."""
        names = [".".join(map(str, path)) for path in self._reward_paths()]

        def renamed(where: str) -> str:
            return re.sub(r"\brewards\.(\d+)", lambda match: names[int(match[1])], where)

        problems = [replace(each, where=renamed(each.where)) for each in error.problems]
        return ConfigError(problems, subject="method")

    def training_file(self, training: Training, **values: Any) -> RunFile:
        """Return a training's run file with `values` replacing some of its sections."""
        if training.run.endswith((".yaml", ".yml")):
            base = RunFile.read(self.document.folder / training.run)
        else:
            base = choose_run_file(training.run, None, None)
        options = [f"--{key}={json.dumps(value)}" for key, value in training.settings.items()]
        own = {key: value for key, value in base.values.items() if key not in _NOT_OF_A_TRIAL}
        own["plugin"] = base.plugin or training.run
        file = replace(base, values=own, shipped=None).override(options)
        return replace(file, values={**file.values, **values})
