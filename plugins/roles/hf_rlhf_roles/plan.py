"""Which steps are to do: what each would read, and whether that has been done already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.steps import digest
from hf_rlhf_roles.data import Inspected, check_kind, check_system, inspect_data, pins_of
from hf_rlhf_roles.guard import seal_adapter, seal_base
from hf_rlhf_roles.ledger import Ledger, Trained, check_isolation
from hf_rlhf_roles.role import BASE, OWNED, REFERENCE, Role, Stage
from hf_rlhf_roles.workspace import Step, Workspace

_FIXED = {key: fix for key, fix in OWNED.items() if key != "dataset"} | {
    "dataset.path": "Give --data FILE.",
    "dataset.name": "It is the stage's `data`, or the `name` under its `dataset`.",
    "dataset.system": "It is the role's `system`.",
    "dataset.revision": "Write it under the stage's `dataset`.",
    "dataset.subset": "Write it under the stage's `dataset`.",
}
"""Keys that no option may change."""
State = Literal["done", "to do", "stale", "waits"]


@dataclass(frozen=True)
class Planned:
    """One step, resolved against the workspace as it is now."""

    step: Step
    role: Role
    stage: Stage
    data: Inspected
    start: str | None
    """The stage whose adapter it continues."""
    values: Mapping[str, Any]
    """The run file, without `output_dir`."""
    inputs: Mapping[str, Any]
    """Everything that decides the adapter: settings, and digests of files."""
    state: State
    why: str
    """Why it is stale, or what it waits for."""
    shared: Sequence[str] = ()
    """Steps of other roles with the same rows, where that is allowed."""

    def run_folder(self) -> Path:
        """Return the run folder, relative to the workspace; its name depends on the inputs."""
        return Path("runs", self.step.role, f"{self.step.stage}-{digest(self.inputs)[:8]}")


class Planner:
    """Resolves steps against one workspace; data is read once for each file."""

    def __init__(
        self,
        workspace: Workspace,
        ledger: Ledger,
        *,
        overrides: Sequence[str] = (),
        allow_shared_data: bool = False,
    ) -> None:
        self.workspace = workspace
        self.ledger = ledger
        self.base = seal_base(workspace)
        self.overrides = overrides
        self.allow_shared_data = allow_shared_data
        self._inspected: dict[tuple[Any, ...], Inspected] = {}
        self._roles: dict[str, Role] = {}

    def role(self, name: str) -> Role:
        """Return a role; its file is read once."""
        if name not in self._roles:
            self._roles[name] = self.workspace.role(name)
        return self._roles[name]

    def inspected(self, step: Step, system_column: str = "system") -> Inspected:
        """Return what was read of a step's data."""
        pins = pins_of(self.role(step.role).stage(step.stage).dataset)
        key = (step.data, *sorted(pins.items()), system_column)
        if key not in self._inspected:
            with self.workspace.inside():
                try:
                    self._inspected[key] = inspect_data(
                        step.data, pins, system_column=system_column
                    )
                except DataError as error:
                    raise DataError(
                        f"{error} (Paths in workspace.yaml are relative to "
                        f"{self.workspace.folder}.)"
                    ) from error
        return self._inspected[key]

    def plan(self, steps: Sequence[Step]) -> list[Planned]:
        """Resolve steps in order; what an earlier one will change makes a later one stale."""
        plan: list[Planned] = []
        for step in steps:
            changing = [before.step.key for before in plan if before.state != "done"]
            plan.append(self.resolve(step, steps, changing))
        return plan

    def resolve(
        self, step: Step, beside: Sequence[Step] = (), changing: Sequence[str] = ()
    ) -> Planned:
        """Resolve one step. `beside` are others whose data must be told apart from its own.

        `changing` are steps that will run before it. Raises what is wrong, before weights load.
        """
        role = self.role(step.role)
        stage = role.stage(step.stage)
        data = self.inspected(step)
        shared = self._shared(step, role, data, beside)
        start = self._start(step, role, changing)
        values = self._values(step, role, stage, start, shared)
        if values["dataset"].keys().isdisjoint(("columns", "schema")):
            check_kind(data, role, step.stage, stage)  # else the run file says how to read it
        columns = values["dataset"].get("columns")
        system = columns.get("system", "system") if isinstance(columns, Mapping) else "system"
        check_system(self.inspected(step, str(system)), role)
        inputs = {
            "data": data.digest,
            "settings": _without_paths(values),
            "base": self.base,
            "adapters": self._adapters(step, stage, start),
        }
        waits = self._waits(step, stage, start, changing)
        planned = Planned(step, role, stage, data, start, values, inputs, "to do", waits, shared)
        if waits:
            return replace(planned, state="waits")
        reasons = self.ledger.reasons(step.key, inputs)
        if reasons is None:
            return planned
        return replace(planned, state="stale" if reasons else "done", why="; ".join(reasons))

    def _shared(self, step: Step, role: Role, data: Inspected, beside: Sequence[Step]) -> list[str]:
        others: dict[str, Trained] = {}
        for key, entry in self.ledger.entries().items():
            name = key.split("/")[0]
            if name != role.name:
                # Also of a role that the workspace does not name, or not any more.
                isolated = name in self.workspace.roles and self.role(name).isolated
                marks = self.ledger.fingerprints(key)
                others[key] = Trained(isolated or entry["result"]["isolated"], marks)
        for other in beside:
            if other.role != role.name:
                marks = self.inspected(other).marks
                others[other.key] = Trained(self.role(other.role).isolated, marks)
        if self.allow_shared_data:
            return [key for key, other in others.items() if data.shares(other.marks)]
        with self.workspace.inside():
            return check_isolation(role, data, others)

    def _start(self, step: Step, role: Role, changing: Sequence[str]) -> str | None:
        """Return the stage whose adapter this one continues: the first that is trained."""
        stage = role.stage(step.stage)
        for name in stage.continues:
            key = f"{step.role}/{name}"
            if key in self.ledger.entries() or key in changing:
                return name
        if stage.continues:
            wanted = " or ".join(stage.continues)
            raise ConfigError(
                [
                    Problem(
                        f"{step.role}/{step.stage}",
                        f"continues the adapter of {wanted}, which is not trained yet.",
                        f"First: hf-rlhf roles train --role {step.role} "
                        f"--stage {stage.continues[-1]} --data FILE.",
                    )
                ]
            )
        return None

    def _waits(self, step: Step, stage: Stage, start: str | None, changing: Sequence[str]) -> str:
        """Return which adapters this step needs that earlier steps will make."""
        keys = [f"{step.role}/{name}" for name in _upstream(stage, start)]
        if missing := [key for key in keys if key not in (*self.ledger.entries(), *changing)]:
            raise ConfigError(
                [
                    Problem(
                        step.key,
                        f"needs the adapter of {key}, which is not trained yet.",
                        f"First: hf-rlhf roles train --role {step.role} "
                        f"--stage {key.split('/')[1]} --data FILE.",
                    )
                    for key in missing
                ]
            )
        waiting_for = [key for key in keys if key in changing]
        return f"for {', '.join(waiting_for)}" if waiting_for else ""

    def _values(
        self, step: Step, role: Role, stage: Stage, start: str | None, shared: Sequence[str]
    ) -> Mapping[str, Any]:
        run = _put_in(stage.run, self.workspace.base, self._folders(step.role))
        values: dict[str, Any] = {
            "schema": 1,
            "plugin": stage.trainer,
            "dataset": {
                "name": stage.data,
                **stage.dataset,
                "path": step.data,
                "system": role.system,
            },
            "model_name_or_path": self.workspace.base,
            "use_peft": True,
            "card": _card(role, step, shared),
            **run,
            # What a role sets to null its stage cannot have, whatever the workspace asks for.
            **{
                key: value
                for key, value in _put_in(self.workspace.run, self.workspace.base, {}).items()
                if run.get(key, value) is not None
            },
        }
        if self.workspace.base_revision:
            values["model_revision"] = self.workspace.base_revision
        if start is not None:
            values["adapter"] = self._folders(step.role).get(start, f"{{adapter:{start}}}")
        return self._overridden(values)

    def _overridden(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        file = RunFile.from_mapping(values, name="roles").override(self.overrides)
        # What was inspected and sealed is what is trained on.
        changed = [
            Problem(f"--{key}", "is decided by the workspace.", fix)
            for key, fix in _FIXED.items()
            if _at(file.values, key) != _at(values, key)
        ]
        if file.problems or changed:
            raise ConfigError([*file.problems, *changed])
        return file.values

    def _folders(self, role: str) -> dict[str, str]:
        """Return the adapter's folder of each stage of a role that is trained."""
        adapters = (key.split("/") + [folder] for key, folder in self.ledger.adapters().items())
        return {stage: folder for name, stage, folder in adapters if name == role}

    def _adapters(self, step: Step, stage: Stage, start: str | None) -> dict[str, Any]:
        """Return the digests of each adapter that this step reads."""
        folders = self._folders(step.role)
        return {
            name: seal_adapter(self.workspace.folder / folders[name])
            for name in _upstream(stage, start)
            if name in folders
        }


def _upstream(stage: Stage, start: str | None) -> list[str]:
    """Return the stages whose adapters a stage reads."""
    return sorted({*stage.needs(), *([start] if start else [])})


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _card(role: Role, step: Step, shared: Sequence[str]) -> dict[str, Any]:
    card = {key: value for key, value in vars(role.card).items() if value}
    if role.stage(step.stage).makes == "reward":
        # What the role is for, and what is known of its answers, is not true of what scores them.
        card["known_notes"] = (
            ["Trained only on rows of this role."] if role.isolated and not shared else []
        )
        card["intended_use"] = (
            f"Scoring answers of the role `{role.name}` (a higher score is a better answer): to "
            "train it, or to compare its answers with each other. It writes nothing, and its score "
            "is no measure of truth."
        )
    if shared:
        steps = ", ".join(shared)
        note = f"Rows of its data were also used for {steps}, as --allow_shared_data permitted."
        card["known_notes"] = [*card.get("known_notes", ()), note]
    return {"title": f"{role.title} ({step.stage})", **card}


def _put_in(value: Any, base: str, adapters: Mapping[str, str]) -> Any:
    """Replace `{base}` and `{adapter:STAGE}` by folders; a stage without an adapter stays."""
    if isinstance(value, Mapping):
        return {key: _put_in(item, base, adapters) for key, item in value.items()}
    if isinstance(value, list):
        return [_put_in(item, base, adapters) for item in value]
    if not isinstance(value, str):
        return value
    text = value.replace(BASE, base)
    return REFERENCE.sub(lambda match: adapters.get(match[1], match[0]), text)


def _without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file without what other hashes stand for: data, base and the adapter."""
    settings = {k: v for k, v in values.items() if k not in ("adapter", "model_name_or_path")}
    settings["dataset"] = {key: item for key, item in values["dataset"].items() if key != "path"}
    return settings
