"""Roles are data: a system prompt, stages, and what each of them runs.

A role is a YAML file (docs/how-to/roles.md has the format). The package ships `data_insight` and
`writer`; a workspace's `roles/NAME.yaml`, or `--role_file`, adds others or replaces these.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import KeyPath, RunFile, bind
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import ConfigError, Problem, suggest

SCHEMA = 1
Kind = Literal["sft", "preference", "prompts"]
"""Kinds of data, by the names of the dataset adapters that read them."""
REFERENCE = re.compile(r"\{adapter:([a-z0-9_]+)\}")
"""In a stage's `run`: the folder of the adapter that another stage of the role has made."""
BASE = "{base}"
"""In a stage's `run`: the base model."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
OWNED = {
    "schema": "It is the run file's own.",
    "plugin": "Write it as the stage's `trainer`.",
    "dataset": "Write the adapter's arguments under the stage's `dataset`.",
    "model_name_or_path": "The base is the workspace's, one for all roles.",
    "model_revision": "It is the workspace's `base_revision`.",
    "adapter": "Write `continues`, with the stages whose adapter this one continues.",
    "use_peft": "A role is always an adapter.",
    "output_dir": "A workspace keeps its runs in `runs/`.",
}
"""Keys of a run file that neither a role nor an option may set -> what decides them."""


@dataclass(frozen=True)
class Stage:
    """One stage of a role: which trainer, on which data, from which adapter."""

    trainer: str
    """A trainer, by name: `sft`, `dpo`, `reward`, `ppo`, or any other that is installed."""
    data: Kind
    """The kind of data that it takes."""
    makes: Literal["policy", "reward"] = "policy"
    """Whose adapter this is: the role's own, or that of its reward model."""
    continues: list[str] = field(default_factory=list)
    """Stages whose adapter it continues: the first of them that is trained. None: a new one."""
    sample: str | None = None
    """A file of example rows, beside the role's own file."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the dataset adapter, which is named by `data` unless `name` is here."""
    run: dict[str, Any] = field(default_factory=dict)
    """Further keys of the run file: rewards, evaluation, settings of the trainer."""

    def needs(self) -> frozenset[str]:
        """Return the stages whose adapters `run` refers to."""
        return frozenset(REFERENCE.findall(plain_yaml.dump(self.run)))


@dataclass(frozen=True)
class RoleCard:
    """What the cards of a role's adapters say."""

    intended_use: str | None = None
    known_notes: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    language: str | None = None
    license: str | None = None


@dataclass(frozen=True)
class Role:
    """A role, as its file says; `folder` is the file's."""

    name: str
    title: str
    description: str
    system: str
    """The system prompt, in training as in serving."""
    stages: Mapping[str, Stage]
    isolated: bool = False
    """Whether its data may serve no other role, and no other role's data this one."""
    card: RoleCard = field(default_factory=RoleCard)
    folder: Path = Path()

    def stage(self, name: str) -> Stage:
        """Return a stage; ConfigError, with those there are, for one that the role lacks."""
        if name in self.stages:
            return self.stages[name]
        raise ConfigError(
            [
                Problem(
                    f"--stage {name}",
                    f"role {self.name!r} has no such stage{_meant(name, self.stages)}.",
                    f"It has: {', '.join(self.stages)}.",
                )
            ]
        )

    def sample(self, stage: str) -> Path | None:
        """Return the file of example rows for a stage, if the role brings one."""
        name = self.stage(stage).sample
        return self.folder / name if name else None


@dataclass(frozen=True)
class _RoleFile:
    """The top level of a role's file, as `bind` checks it."""

    schema: int
    name: str
    title: str
    description: str
    system: str
    stages: dict[str, Any]
    isolated: bool = False
    card: dict[str, Any] = field(default_factory=dict)


def shipped() -> dict[str, Path]:
    """Return the role files of this package, by name."""
    folder = Path(str(files("hf_rlhf_roles"))) / "roles"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_role(path: Path) -> Role:
    """Read a role's file. Raises ConfigError with everything that is wrong in it, by line."""
    return _RoleReader(path).role()


class FileReader:
    """One pass over a YAML file, collecting problems with their lines."""

    def __init__(self, path: Path) -> None:
        """Parse the file. Raises ConfigError if it cannot be read."""
        self.path = path
        self.file = RunFile.read(path)
        self.problems = list(self.file.problems)

    def bound(
        self, cls: type, values: Mapping[str, Any], path: KeyPath, title: str
    ) -> dict[str, Any]:
        """Return the values at `path` that fit the fields of a dataclass; report the others."""
        good, problems = bind(
            cls, values, where=lambda key: self.file.where((*path, key)), title=title
        )
        self.problems += problems
        return good

    def report(self, path: KeyPath, what: str, fix: str) -> None:
        """Add a problem of the value at `path`."""
        self.problems.append(Problem(self.file.where(path), what, fix))

    def finish(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)))


class _RoleReader(FileReader):
    def role(self) -> Role:
        fields = self.bound(_RoleFile, self.file.values, (), "a role")
        self._check_top(fields)
        stages = fields.get("stages")
        read = {
            name: self._stage(name, value)
            for name, value in (stages if isinstance(stages, dict) else {}).items()
        }
        for name, stage in read.items():
            if stage is not None:
                self._check_stage(name, stage, read)
        card = self.bound(RoleCard, fields.get("card") or {}, ("card",), "`card`")
        self.finish()
        return Role(
            name=fields["name"],
            title=fields["title"],
            description=fields["description"].strip(),
            system=fields["system"].strip(),
            stages={name: stage for name, stage in read.items() if stage is not None},
            isolated=fields.get("isolated", False),
            card=RoleCard(**card),
            folder=self.path.parent,
        )

    def _check_top(self, fields: Mapping[str, Any]) -> None:
        if fields.get("schema", SCHEMA) != SCHEMA:
            self.report(("schema",), f"is {fields['schema']}.", f"This package reads {SCHEMA}.")
        name = fields.get("name")
        if name is not None and not _NAME.fullmatch(name):
            self.report(("name",), f"is {name!r}.", "Use small letters, digits and `_`.")
        elif name is not None and name != self.path.stem:
            fix = f"Call the file {name}.yaml, or write `name: {self.path.stem}`."
            self.report(("name",), f"is {name!r}, but the file is {self.path.name}.", fix)
        if "system" in fields and not fields["system"].strip():
            self.report(("system",), "is empty.", "Write the system prompt of the role.")
        if fields.get("stages") == {}:
            self.report(("stages",), "is empty.", "A role has at least one stage, such as `sft`.")

    def _stage(self, name: str, value: Any) -> Stage | None:
        if not _NAME.fullmatch(name):
            self.report(("stages", name), "is no name.", "Use small letters, digits and `_`.")
        if not isinstance(value, dict):
            self.report(("stages", name), "should be a mapping.", "Write `trainer: sft` under it.")
            return None
        before = len(self.problems)
        fields = self.bound(Stage, value, ("stages", name), f"stage `{name}`")
        return Stage(**fields) if len(self.problems) == before else None

    def _check_stage(self, name: str, stage: Stage, stages: Mapping[str, Any]) -> None:
        at: KeyPath = ("stages", name)
        for key in sorted(stage.run.keys() & OWNED.keys()):
            self.report((*at, "run", key), "is decided by the workspace.", OWNED[key])
        for key in sorted(stage.dataset.keys() & {"path", "system"}):
            self.report((*at, "dataset", key), "is given by the workspace.", "Remove it.")
        references = [(("continues",), other) for other in stage.continues]
        references += [(("run",), other) for other in sorted(stage.needs())]
        for path, other in references:
            if other == name or other not in stages:
                known = ", ".join(stage for stage in stages if stage != name) or "none"
                what = f"names the stage {other!r}{_meant(other, stages)}."
                self.report((*at, *path), what, f"Other stages of this role: {known}.")
        if stage.sample and not (self.path.parent / stage.sample).is_file():
            fix = f"It is looked for in {self.path.parent}."
            self.report((*at, "sample"), f"there is no file {stage.sample!r}.", fix)


def unknown_role(name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown role."""
    names = list(known)
    return ConfigError(
        [
            Problem(
                f"role {name!r}",
                f"there is no such role{_meant(name, names)}.",
                f"Roles here: {', '.join(names) or 'none'}. A role of your own is a file "
                "roles/NAME.yaml in the workspace, named under `roles` in workspace.yaml.",
            )
        ]
    )


def _meant(name: str, known: Iterable[str]) -> str:
    guess = suggest(name, known)
    return f" (did you mean {guess!r}?)" if guess else ""
