"""A workspace: a folder with the name of the base, the roles, their data, runs and adapters.

    workspace.yaml   the base, the roles, the order of steps, and settings for this machine
    data/            rows, a file for each step
    roles/           further roles, a YAML file each
    runs/            a run folder for each training, and its run file beside it
    adapters/        the adapter of each role, as its last step left it
    ledger.json      the inputs and outputs of each step, with hashes

It can be moved: paths in it are relative, except to data and base as the user wrote them.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import RunFile, bind, dump_yaml
from hf_rlhf.data import read_rows
from hf_rlhf.errors import ConfigError, ModelError, Problem, RunFolderError, did_you_mean
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_roles.role import OWNED, Role, config_error, read_role, shipped, unknown_role

NAME = "workspace.yaml"
LEDGER = "ledger.json"
FOLDERS = ("data", "roles", "runs", "adapters")


@dataclass(frozen=True)
class Step:
    """A stage of a role, and its data: an entry of `order`."""

    role: str
    stage: str
    data: str
    """A file in the workspace, one elsewhere, or a Hub dataset."""
    optional: bool = False
    """Left out by `train --all`, unless `--optional` is given too."""

    @property
    def key(self) -> str:
        """Return the name of the step, `role/stage`."""
        return f"{self.role}/{self.stage}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in the file of a workspace, except its roles."""

    schema: Literal[1]
    base: str
    """A Hub id, package://PACKAGE/FOLDER, or a folder (relative to the workspace)."""
    order: list[Step]
    base_revision: str | None = None
    base_on_hub: str | None = None
    """The base's id on the Hub, where `base` is a folder."""
    run: dict[str, Any] = field(default_factory=dict)
    """Run file keys for every step: settings for this machine."""
    launch: list[str] | None = None
    """The command that starts a training, such as `[accelerate, launch]`. None: this process."""
    judge: dict[str, Any] | None = None
    """Who judges in `roles eval`. None: nobody, the preset `structure`."""


@dataclass(frozen=True, kw_only=True)
class _File(Settings):
    """workspace.yaml."""

    roles: list[str]


@dataclass(frozen=True, kw_only=True)
class Workspace(Settings):
    """A workspace with its roles."""

    folder: Path
    roles: Mapping[str, Role]

    def role(self, name: str) -> Role:
        """Return a role. Raises ConfigError, with near names, if the workspace lacks it."""
        if name in self.roles:
            return self.roles[name]
        if (self.folder / "roles" / f"{name}.yaml").is_file():
            raise config_error(
                f"role {name!r}",
                f"is in roles/, but not in {NAME}.",
                f"Add {name} to `roles` in {NAME}; it has: {', '.join(self.roles)}.",
            )
        raise ConfigError([unknown_role(name, self.roles)])

    def has_local_base(self) -> bool:
        """Return whether the base is on this machine only."""
        local = self.base.startswith((".", "/", "~", "package://"))
        return local or (self.folder / self.base).is_dir()

    def inside(self) -> AbstractContextManager[None]:
        """Make the workspace the working directory: paths in run records are relative to it."""
        return chdir(self.folder)

    def adapter(self, role: str, makes: str = "policy") -> Path:
        """Return the folder of a role's adapter, relative to the workspace."""
        return Path("adapters", role if makes == "policy" else f"{role}.{makes}")

    def trained(self, role: str, makes: str = "policy") -> Path:
        """Return the folder of a role's adapter; ModelError if the role is not trained."""
        folder = self.folder / self.adapter(role, makes)
        if not (folder / "adapter_config.json").exists():
            stage = "reward" if makes == "reward" else "sft"
            raise ModelError(
                f"role {role!r} has no adapter in {folder}. Train it first: hf-rlhf roles train "
                f"--role {role} --stage {stage} --data FILE."
            )
        return folder

    def path_of(self, data: str) -> str:
        """Return the path of a data file: relative if it is in the workspace, else absolute."""
        path = Path(data).expanduser()
        if not os.path.exists(path):
            return data  # a Hub dataset, or a mistake that is reported when it is read
        path = path.resolve()
        home = self.folder.resolve()
        return path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)

    def step(self, role: str, stage: str) -> Step | None:
        """Return the step of the order with that role and stage, if it exists."""
        return next((s for s in self.order if (s.role, s.stage) == (role, stage)), None)


def read_workspace(home: Path) -> Workspace:
    """Read a workspace.

    Raises ConfigError with all problems of workspace.yaml and of its roles' files, RunFolderError
    if there is no workspace.
    """
    if not (home / NAME).is_file():
        raise RunFolderError(
            f"{home} is no workspace: it has no {NAME}. Name one with --workspace DIR, restore the "
            "file, or make a workspace: hf-rlhf roles init DIR --base MODEL."
        )
    file, home = RunFile.read(home / NAME), home.resolve()
    fields, problems = bind(_File, file.values, where=file.where_key, title="a workspace")
    problems = [*file.problems, *problems]
    for key in sorted(fields.get("run", {}).keys() & OWNED.keys()):
        where = file.where(("run", key))
        problems.append(Problem(where, "cannot be set for all steps.", OWNED[key]))
    paths = shipped() | {path.stem: path for path in (home / "roles").glob("*.yaml")}
    names = fields.get("roles", [])
    for number, name in enumerate(names):
        if name not in paths:
            problems.append(unknown_role(name, paths, file.where(("roles", number))))
    listed = {name: paths[name] for name in names if name in paths}
    roles, role_problems = _read_roles(listed)
    problems += role_problems
    problems += _order_problems(file, fields.get("order", ()), names, roles)
    if problems:
        raise ConfigError(problems)
    return Workspace(**{**fields, "roles": roles}, folder=home)


def _read_roles(paths: Mapping[str, Path]) -> tuple[dict[str, Role], list[Problem]]:
    """Return the roles whose files have no errors, and the problems of the others."""
    roles: dict[str, Role] = {}
    problems: list[Problem] = []
    for name, path in paths.items():
        try:
            roles[name] = read_role(path)
        except ConfigError as error:
            problems += error.problems
    return roles, problems


def _order_problems(
    file: RunFile, order: Sequence[Step], names: Collection[str], roles: Mapping[str, Role]
) -> Iterator[Problem]:
    """Yield what is wrong in `order`: steps of unknown roles or stages, and repeated ones.

    `names` are the workspace's roles; `roles` are the roles whose files have no errors.
    """
    for number, step in enumerate(order):
        where = file.where(("order", number))
        if step.role not in names:
            yield unknown_role(step.role, names, file.where(("order", number, "role")))
        elif step.role in roles and step.stage not in (role := roles[step.role]).stages:
            what = f"role {role.name!r} has no stage {step.stage!r}"
            near = did_you_mean(step.stage, role.stages)
            yield Problem(where, f"{what}{near}.", f"It has: {', '.join(role.stages)}.")
        if step.key in {earlier.key for earlier in order[:number]}:
            yield Problem(where, f"repeats {step.key}.", "Keep one of them.")


_CPU = """\
run:  # for a CPU, and an untrained base
  use_cpu: true
  bf16: false
  activation_checkpointing: false
  dataloader_pin_memory: false
  learning_rate: 2.0e-3
  evaluation: {rows: 4, max_new_tokens: 32}
"""


def make_workspace(folder: Path, base: str | None, *, tiny: bool = False) -> Workspace:
    """Make a workspace with the shipped roles, their sample rows and the recommended order.

    With `tiny`, the base is a new small random model, for trying everything on a CPU.
    """
    if (folder / NAME).exists():
        raise RunFolderError(f"{folder} is a workspace already. Choose another folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty. Choose another folder.")
    if tiny == (base is not None):
        raise config_error("command line", "names no base.", "Give --base MODEL or --tiny.")
    if base is not None:
        base = _base_name(base)
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    package = Path(str(files("hf_rlhf_roles")))
    for sample in (package / "roles").glob("*.sample.jsonl"):
        shutil.copyfile(sample, folder / "data" / sample.name.replace(".sample", ""))
    text = (package / "workspace_template.yaml").read_text(encoding="utf-8")
    if tiny:
        from hf_rlhf_worlds.tiny_models import make_tiny_base

        make_tiny_base(folder / "base", _texts(folder / "data"))
        text = text.replace("run: {}\n", _CPU)
    text = text.replace("base: BASE\n", dump_yaml({"base": base or "./base"}))
    atomic_write_text(folder / NAME, text)
    return read_workspace(folder)


def _texts(folder: Path) -> Iterator[str]:
    """Yield every text of the rows in a folder, for the vocabulary of a tiny base."""
    for rows in read_rows(folder).splits.values():
        for row in rows:
            yield from (value for value in row.values.values() if isinstance(value, str))


def _base_name(base: str) -> str:
    """Return a base as workspace.yaml names it: a folder from the root. Raises ConfigError."""
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if base.startswith((".", "/", "~")):
        raise config_error("--base", f"there is no folder {base}.", "Name a folder, or a Hub id.")
    return base
