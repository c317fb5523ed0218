"""The plan of a training: the inputs of each step, and whether the step is up to date."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.steps import digest
from hf_rlhf_roles.data import Inspected, check_kind, check_system, inspect_data, pins_of
from hf_rlhf_roles.guard import adapter_digests, base_digests
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
State = Literal["done", "to do", "stale", "waiting"]


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
    """Everything that determines the adapter: settings, and digests of files."""
    state: State
    why: str
    """Why it is stale, or what it waits for."""
    shared: Sequence[str]
    """Steps of other roles with some of its rows, where that is allowed."""

    def run_folder(self) -> Path:
        """Return the run folder, relative to the workspace; its name depends on the inputs."""
        return Path("runs", self.step.role, f"{self.step.stage}-{digest(self.inputs)[:8]}")


class Planner:
    """Resolves steps against one workspace.

    The settings name the adapter that a step continues, which depends on the stages trained so far,
    so each step is resolved when those before it are done. The adapters' digests are inputs of a
    step, in place of the ledger's `after`: with it, the steps of older workspaces would be trained
    again.
    """

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
        self.base = base_digests(workspace)
        self.overrides = overrides
        self.allow_shared_data = allow_shared_data
        self._inspected: dict[tuple[Any, ...], Inspected] = {}

    def inspected(self, step: Step, system_column: str = "system") -> Inspected:
        """Return the inspection of a step's data, whose rows are read once."""
        pins = pins_of(self.workspace.role(step.role).stage(step.stage).dataset)
        key = (step.data, *sorted(pins.items()), system_column)
        if key not in self._inspected:
            with self.workspace.inside():
                try:
                    self._inspected[key] = inspect_data(
                        step.data, pins, system_column=system_column
                    )
                except DataError as error:
                    paths = f"Paths in workspace.yaml are relative to {self.workspace.folder}."
                    raise DataError(f"{error} ({paths})") from error
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
        """Resolve one step, before any weights load.

        Args:
            step: the step.
            beside: other steps to train; an isolated role may share no rows with them.
            changing: keys of steps that will run before it.

        Raises ConfigError for wrong settings and missing adapters, DataError for unfit data.
        """
        role = self.workspace.role(step.role)
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
        state: State = "waiting"
        why = self._waits(step, stage, start, changing)
        if not why:
            reasons = self.ledger.reasons(step.key, inputs)
            state = "to do" if reasons is None else "stale" if reasons else "done"
            why = "; ".join(reasons or ())
        return Planned(step, role, stage, data, start, values, inputs, state, why, shared)

    def _shared(self, step: Step, role: Role, data: Inspected, beside: Sequence[Step]) -> list[str]:
        others: dict[str, Trained] = {}
        for key in self.ledger.entries():
            if key.split("/")[0] != role.name:
                others[key] = Trained(self.ledger.is_isolated(key), self.ledger.fingerprints(key))
        for other in beside:
            if other.role != role.name:
                isolated = self.workspace.role(other.role).isolated
                others[other.key] = Trained(isolated, self.inspected(other).marks)
        if self.allow_shared_data:
            return [key for key, other in others.items() if data.shares(other.marks)]
        with self.workspace.inside():
            return check_isolation(role, data, others)

    def _start(self, step: Step, role: Role, changing: Sequence[str]) -> str | None:
        """Return the stage whose adapter this one continues: the first that is trained."""
        stages = role.stage(step.stage).continues
        trained = {*self.ledger.entries(), *changing}
        if start := next((name for name in stages if f"{step.role}/{name}" in trained), None):
            return start
        if stages:
            what = f"continues the adapter of {' or '.join(stages)}"
            raise ConfigError([_untrained(step, what, stages[-1])])
        return None

    def _waits(self, step: Step, stage: Stage, start: str | None, changing: Sequence[str]) -> str:
        """Return which adapters this step needs that earlier steps will make."""
        trained, names = {*self.ledger.entries(), *changing}, _upstream(stage, start)
        if missing := [name for name in names if f"{step.role}/{name}" not in trained]:
            raise ConfigError(
                [
                    _untrained(step, f"needs the adapter of {step.role}/{name}", name)
                    for name in missing
                ]
            )
        due = [key for key in (f"{step.role}/{name}" for name in names) if key in changing]
        return f"for {', '.join(due)}" if due else ""

    def _values(
        self, step: Step, role: Role, stage: Stage, start: str | None, shared: Sequence[str]
    ) -> Mapping[str, Any]:
        run = _substitute(stage.run, self.workspace.base, self._folders(step.role))
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
            # A null in the role wins over the workspace: the stage cannot have that setting.
            **{
                key: value
                for key, value in _substitute(self.workspace.run, self.workspace.base, {}).items()
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
        # The data that was inspected and the base that was hashed are those trained on.
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
            name: adapter_digests(self.workspace.folder / folders[name])
            for name in _upstream(stage, start)
            if name in folders
        }


def _untrained(step: Step, what: str, stage: str) -> Problem:
    fix = f"First: hf-rlhf roles train --role {step.role} --stage {stage} --data FILE."
    return Problem(step.key, f"{what}, which is not trained yet.", fix)


def _upstream(stage: Stage, start: str | None) -> list[str]:
    """Return the stages whose adapters a stage reads."""
    return sorted({*stage.needs(), *([start] if start else [])})


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _card(role: Role, step: Step, shared: Sequence[str]) -> dict[str, Any]:
    card = {key: value for key, value in vars(role.card).items() if value}
    if role.stage(step.stage).makes == "reward":
        # The role's use, and the notes on its answers, do not hold for a model that scores them.
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


def _substitute(value: Any, base: str, adapters: Mapping[str, str]) -> Any:
    """Replace `{base}` and `{adapter:STAGE}` by folders; a stage without an adapter stays."""
    if isinstance(value, Mapping):
        return {key: _substitute(inner, base, adapters) for key, inner in value.items()}
    if isinstance(value, list):
        return [_substitute(inner, base, adapters) for inner in value]
    if not isinstance(value, str):
        return value
    text = value.replace(BASE, base)
    return REFERENCE.sub(lambda match: adapters.get(match[1], match[0]), text)


def _without_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run file without the paths of data, base and adapter: their hashes count."""
    settings = {k: v for k, v in values.items() if k not in ("adapter", "model_name_or_path")}
    settings["dataset"] = {k: v for k, v in values["dataset"].items() if k != "path"}
    return settings
