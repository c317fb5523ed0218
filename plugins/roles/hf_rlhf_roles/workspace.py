"""A workspace: one folder with the base's name, the roles, their data, runs and adapters.

    workspace.yaml   the base, the roles, the recommended order, what this machine needs
    data/            rows, one file for each step
    roles/           roles of one's own, a YAML file each
    runs/            a run folder for each training, with the run file that made it beside it
    adapters/        the adapter of each role, as the last step left it
    ledger.json      which step was trained on what, with hashes

Nothing in it names a place outside, except data and base where the user did, so it can be moved.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.data import read_file
from hf_rlhf.errors import ConfigError, ModelError, Problem, RunFolderError
from hf_rlhf.storage import atomic_write_text
from hf_rlhf_roles.role import OWNED, SCHEMA, FileReader, Role, read_role, shipped, unknown_role

NAME = "workspace.yaml"
LEDGER = "ledger.json"
FOLDERS = ("data", "roles", "runs", "adapters")


@dataclass(frozen=True)
class Step:
    """One stage of one role on its data, as `order` has them."""

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


@dataclass(frozen=True)
class _File:
    """The top level of workspace.yaml, as `bind` checks it."""

    schema: int
    base: str
    roles: list[str]
    order: list[dict[str, Any]]
    base_revision: str | None = None
    base_on_hub: str | None = None
    run: dict[str, Any] = field(default_factory=dict)
    launch: list[str] | None = None
    keep_merged: bool = False
    judge: dict[str, Any] | None = None


@dataclass(frozen=True)
class Workspace:
    """A workspace, as its file says."""

    folder: Path
    base: str
    """A Hub id, package://PACKAGE/FOLDER, or a folder (relative to the workspace)."""
    roles: Mapping[str, Path]
    """The file of each role."""
    order: Sequence[Step]
    base_revision: str | None = None
    base_on_hub: str | None = None
    """The base's id on the Hub, where `base` is a folder."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Run file keys for every step: what this machine needs."""
    launch: Sequence[str] | None = None
    """The command that starts a training, such as `[accelerate, launch]`. None: this process."""
    keep_merged: bool = False
    """Whether runs keep their merged weights, each as large as the base."""
    judge: Mapping[str, Any] | None = None
    """Who judges in `roles eval`. None: nobody, the preset `structure`."""

    def role(self, name: str) -> Role:
        """Return a role; ConfigError, with near names, for one that the workspace has not."""
        if name not in self.roles:
            if (self.folder / "roles" / f"{name}.yaml").is_file():
                fix = f"Add {name} to `roles` in {NAME}; it has: {', '.join(self.roles)}."
                raise ConfigError(
                    [Problem(f"role {name!r}", f"is in roles/, and not in {NAME}.", fix)]
                )
            raise unknown_role(name, self.roles)
        return read_role(self.roles[name])

    def has_local_base(self) -> bool:
        """Return whether the base is on this machine, where nobody else can load it from."""
        local = self.base.startswith((".", "/", "~", "package://"))
        return local or (self.folder / self.base).is_dir()

    def inside(self) -> AbstractContextManager[None]:
        """Make the workspace the working directory: what a run records is relative to it."""
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

    def path_of(self, data: str, folder: Path) -> str:
        """Return the name of a file of `folder`: relative if it is in the workspace."""
        path = folder / Path(data).expanduser()
        if not os.path.exists(path):
            return data  # a Hub dataset, or a mistake that reading it will name
        path = path.resolve()
        home = self.folder.resolve()
        return path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)

    def step(self, role: str, stage: str) -> Step | None:
        """Return the step of the order with that role and stage, if there is one."""
        return next((s for s in self.order if (s.role, s.stage) == (role, stage)), None)


def find_workspace(start: Path | None = None) -> Path:
    """Return the workspace that `start` (by default the working directory) is in."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / NAME).is_file():
            return folder
    raise RunFolderError(
        f"{here} is in no workspace: neither it nor a folder above it has a {NAME}. Name one with "
        "--workspace DIR, or make one: hf-rlhf roles init DIR --base MODEL."
    )


def read_workspace(folder: Path | None = None, *, role_file: Path | None = None) -> Workspace:
    """Read a workspace; by default the one that the working directory is in.

    `role_file` is a further role, which wins over one of its name. Raises ConfigError with
    everything that is wrong in workspace.yaml, RunFolderError where there is no workspace.
    """
    home = find_workspace() if folder is None else folder
    if not (home / NAME).is_file():
        left = [name for name in (LEDGER, *FOLDERS) if (home / name).exists()]
        what = f"holds {', '.join(left)}, but no {NAME}: it is incomplete" if left else "is none"
        raise RunFolderError(
            f"{home} {what}. Restore {NAME}, or make a workspace: "
            f"hf-rlhf roles init {home} --base MODEL."
        )
    return _WorkspaceReader(home, role_file).workspace()


class _WorkspaceReader(FileReader):
    def __init__(self, home: Path, role_file: Path | None) -> None:
        super().__init__(home / NAME)
        self.home = home.resolve()
        self.role_file = role_file

    def workspace(self) -> Workspace:
        fields = self.bound(_File, self.file.values, (), "a workspace")
        if fields.get("schema", SCHEMA) != SCHEMA:
            self.report(("schema",), f"is {fields['schema']}.", f"This package reads {SCHEMA}.")
        for key in sorted((fields.get("run") or {}).keys() & OWNED.keys()):
            self.report(("run", key), "is not for every step to have.", OWNED[key])
        roles = self._roles(fields.get("roles") or [])
        steps = [self._step(n, entry, roles) for n, entry in enumerate(fields.get("order") or [])]
        self.finish()
        del fields["schema"]
        order = tuple(step for step in steps if step is not None)
        if repeated := {s.key for s in order if [o.key for o in order].count(s.key) > 1}:
            what = f"has {', '.join(sorted(repeated))} twice."
            raise ConfigError([Problem(self.file.where(("order",)), what, "Keep one of them.")])
        fields = {**fields, "roles": roles, "order": order}
        return Workspace(folder=self.home, **fields)

    def _roles(self, names: Sequence[str]) -> dict[str, Path]:
        known = shipped() | {path.stem: path for path in (self.home / "roles").glob("*.yaml")}
        roles = {}
        for number, name in enumerate(names):
            if name in known:
                roles[name] = known[name]
            else:
                (problem,) = unknown_role(name, known).problems
                self.report(("roles", number), problem.what, problem.fix)
        if self.role_file is not None:
            roles[self.role_file.stem] = self.role_file.resolve()
        return roles

    def _step(
        self, number: int, entry: Mapping[str, Any], roles: Mapping[str, Path]
    ) -> Step | None:
        before = len(self.problems)
        fields = self.bound(Step, entry, ("order", number), "a step")
        if len(self.problems) > before:
            return None
        step = Step(**fields)
        if step.role not in roles:
            (problem,) = unknown_role(step.role, roles).problems
            self.report(("order", number, "role"), problem.what, problem.fix)
            return None
        try:
            read_role(roles[step.role]).stage(step.stage)
        except ConfigError as error:
            for problem in error.problems:
                self.report(("order", number), str(problem), "")
        return step


_ORDER = (
    ("data_insight", "sft", False),
    ("writer", "sft", False),
    ("writer", "dpo", False),
    ("writer", "reward", False),
    ("writer", "ppo", True),
)
_MACHINE = """\
# Keys of the run file for every step: what this machine needs.
run: {}
"""
_CPU = """\
# Keys of the run file for every step: a CPU, and a base that knows nothing yet.
run:
  use_cpu: true
  bf16: false
  activation_checkpointing: false
  dataloader_pin_memory: false
  learning_rate: 2.0e-3
  evaluation: {rows: 4, max_new_tokens: 32}
"""


def make_workspace(folder: Path, base: str | None, *, tiny: bool = False) -> Workspace:
    """Make a workspace with the shipped roles, their sample rows and the recommended order.

    With `tiny`, the base is a small random model made there, for trying everything on a CPU.
    """
    if (folder / NAME).exists():
        raise RunFolderError(f"{folder} is a workspace already. Choose another folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty. Choose another folder.")
    if tiny == (base is not None):
        raise ConfigError(
            [Problem("command line", "names no base.", "Give --base MODEL or --tiny.")]
        )
    if base is not None:
        base = _base_name(base)
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    roles = {name: read_role(path) for name, path in shipped().items()}
    steps = []
    for role, stage, optional in _ORDER:
        sample = roles[role].sample(stage)
        assert sample is not None, (role, stage)
        data = f"data/{sample.name.replace('.sample', '')}"
        shutil.copyfile(sample, folder / data)
        note = ", optional: true" if optional else ""
        steps.append(f"  - {{role: {role}, stage: {stage}, data: {data}{note}}}\n")
    if tiny:
        from hf_rlhf_worlds.tiny_models import make_tiny_base

        make_tiny_base(folder / "base", _texts(folder / "data"))
    text = (
        "schema: 1\n"
        "# One base for all roles: a Hub id, a folder, or package://PACKAGE/FOLDER.\n"
        f"{plain_yaml.dump({'base': './base' if tiny else base})}"
        f"roles: [{', '.join(roles)}]\n"
        "# What `hf-rlhf roles train --all` does, in this order. Put your own files here.\n"
        f"order:\n{''.join(steps)}{_CPU if tiny else _MACHINE}"
    )
    atomic_write_text(folder / NAME, text)
    return read_workspace(folder)


def _texts(folder: Path) -> Iterator[str]:
    """Yield every text of the rows in a folder, for the vocabulary of a tiny base."""
    for path in sorted(folder.glob("*.jsonl")):
        for row in read_file(path):
            yield from (value for value in row.values.values() if isinstance(value, str))


def _base_name(base: str) -> str:
    """Return a base as workspace.yaml names it: a folder from the root. Raises ConfigError."""
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if base.startswith((".", "/", "~")):
        raise ConfigError(
            [Problem("--base", f"there is no folder {base}.", "Name a folder, or a Hub id.")]
        )
    return base
