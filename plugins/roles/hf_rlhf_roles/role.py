"""Roles are data: a system prompt, stages, and what each of them runs.

A role is a YAML file (docs/how-to/roles.md has the format). The package ships `data_insight` and
`writer`; a workspace's `roles/NAME.yaml` adds others or replaces these.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import KeyPath, RunFile, bind, dump_yaml
from hf_rlhf.errors import ConfigError, Problem, did_you_mean

Kind = Literal["sft", "preference", "prompts"]
"""Kinds of data, by the names of the dataset adapters that read them."""
REFERENCE = re.compile(r"\{adapter:([a-z0-9_]+)\}")
"""In a stage's `run`: the folder of the adapter of another stage of the role."""
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
    """A stage of a role: which trainer, on which data, from which adapter."""

    trainer: str
    """A trainer, by name: `sft`, `dpo`, `reward`, `ppo`, or any other that is installed."""
    data: Kind
    """Its kind of data."""
    makes: Literal["policy", "reward"] = "policy"
    """Whose adapter this is: the role's own, or that of its reward model."""
    continues: list[str] = field(default_factory=list)
    """It starts from the adapter of the first of these stages that is trained; if empty, anew."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the dataset adapter, which is named by `data` unless `name` is here."""
    run: dict[str, Any] = field(default_factory=dict)
    """Further keys of the run file: rewards, evaluation, settings of the trainer."""

    def needs(self) -> frozenset[str]:
        """Return the stages whose adapters `run` refers to."""
        return frozenset(REFERENCE.findall(dump_yaml(self.run)))


@dataclass(frozen=True)
class RoleFile:
    """A role's YAML file."""

    schema: Literal[1]
    name: str
    title: str
    description: str
    system: str
    """The system prompt, in training and in serving."""
    stages: dict[str, Stage]
    isolated: bool = False
    """Whether its data may serve no other role, and no other role's data this one."""
    card: dict[str, Any] = field(default_factory=dict)
    """The section `card` of its run files: what the cards of its adapters say."""


@dataclass(frozen=True)
class Role(RoleFile):
    """A role, and the folder of its file."""

    folder: Path = Path()

    def stage(self, name: str) -> Stage:
        """Return a stage. Raises ConfigError, listing the role's stages, if there is none."""
        if name in self.stages:
            return self.stages[name]
        raise config_error(
            f"--stage {name}",
            f"role {self.name!r} has no such stage{did_you_mean(name, self.stages)}.",
            f"It has: {', '.join(self.stages)}.",
        )


def shipped() -> dict[str, Path]:
    """Return the role files of this package, by name."""
    folder = Path(str(files("hf_rlhf_roles"))) / "roles"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read_role(path: Path) -> Role:
    """Read a role's file. Raises ConfigError with all problems in it, by line."""
    file = RunFile.read(path)
    fields, problems = bind(RoleFile, file.values, where=file.where_key, title="a role")
    problems += [
        Problem(file.where(where), what, fix) for where, what, fix in _role_faults(fields, path)
    ]
    if problems := [*file.problems, *problems]:
        raise ConfigError(problems)
    texts = {key: fields[key].strip() for key in ("description", "system")}
    return Role(**{**fields, **texts}, folder=path.parent)


_Fault = tuple[KeyPath, str, str]
"""A key, what is wrong with its value, and the fix."""


def _role_faults(fields: Mapping[str, Any], path: Path) -> Iterator[_Fault]:
    """Yield what types do not show; `fields` holds the values whose types fit."""
    name = fields.get("name")
    if name is not None and not _NAME.fullmatch(name):
        yield ("name",), f"is {name!r}.", "Use small letters, digits and `_`."
    elif name is not None and name != path.stem:
        fix = f"Call the file {name}.yaml, or write `name: {path.stem}`."
        yield ("name",), f"is {name!r}, but the file is {path.name}.", fix
    if not fields.get("system", "-").strip():
        yield ("system",), "is empty.", "Write the system prompt of the role."
    if fields.get("stages") == {}:
        yield ("stages",), "is empty.", "A role has at least one stage, such as `sft`."
    for stage in fields.get("stages", ()):
        yield from _stage_faults(stage, fields["stages"])


def _stage_faults(name: str, stages: Mapping[str, Stage]) -> Iterator[_Fault]:
    at, stage = ("stages", name), stages[name]
    if not _NAME.fullmatch(name):
        yield at, "is not a valid name.", "Use small letters, digits and `_`."
    for key in sorted(stage.run.keys() & OWNED.keys()):
        yield (*at, "run", key), "is decided by the workspace.", OWNED[key]
    for key in sorted(stage.dataset.keys() & {"path", "system"}):
        yield (*at, "dataset", key), "is set by the workspace.", "Remove it."
    references = [("continues", other) for other in stage.continues]
    references += [("run", other) for other in sorted(stage.needs())]
    others = [other for other in stages if other != name]
    for key, other in references:
        if other not in others:
            what = f"names the stage {other!r}{did_you_mean(other, stages)}."
            yield (*at, key), what, f"Other stages of this role: {', '.join(others) or 'none'}."


def unknown_role(name: str, roles: Iterable[str], where: str = "") -> Problem:
    """Return the problem of a role that is not among `roles`; `where` is its location in a file."""
    names = list(roles)
    return Problem(
        where or f"role {name!r}",
        f"there is no such role{did_you_mean(name, names)}.",
        f"Roles here: {', '.join(names) or 'none'}. A role of your own is a file "
        "roles/NAME.yaml in the workspace, listed under `roles` in workspace.yaml.",
    )


def config_error(where: str, what: str, fix: str) -> ConfigError:
    """Return the error of a single problem."""
    return ConfigError([Problem(where, what, fix)])
