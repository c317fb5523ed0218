"""The plan of a training: the tasks of a chain, with the inputs of each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, Problem
from hf_rlhf.steps import Task, digest
from hf_rlhf_roles.data import (
    Inspected,
    check_kind,
    check_system,
    first_shared,
    inspect_data,
    pins_of,
)
from hf_rlhf_roles.guard import base_digests
from hf_rlhf_roles.ledger import Ledger
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


@dataclass(frozen=True, kw_only=True)
class Planned(Task):
    """A step of a role, resolved against the workspace as it is now."""

    entry: Step
    role: Role
    stage: Stage
    data: Inspected
    start: str | None
    """The stage whose adapter it continues."""
    values: Mapping[str, Any]
    """The run file, without `output_dir`; base and adapters of other stages are placeholders."""
    shared: Sequence[str]
    """Steps of other roles with some of its rows, where that is allowed."""


class Planner:
    """Resolves steps against a workspace.

    A step is stale when its settings or rows change, or the adapter that it reads has been trained
    again: the inputs name that adapter by its stage, and the ledger knows what became of the stage.
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
        """Resolve steps in order, before any weights load; isolated roles may share no rows.

        Raises ConfigError for wrong settings and missing adapters, DataError for unfit data.
        """
        trained = [*self.ledger.entries()]
        plan = []
        for step in steps:
            plan.append(self._resolve(step, steps, trained))
            trained.append(step.key)
        return plan

    def _resolve(self, step: Step, steps: Sequence[Step], trained: Collection[str]) -> Planned:
        role = self.workspace.role(step.role)
        stage = role.stage(step.stage)
        data = self.inspected(step)
        shared = self._shared(step, role, data, steps)
        start, after = _upstream(step, stage, trained)
        values = self._values(step, role, stage, start, shared)
        if values["dataset"].keys().isdisjoint(("columns", "schema")):
            check_kind(data, role, step.stage, stage)  # else the run file says how to read it
        columns = values["dataset"].get("columns")
        system = columns.get("system", "system") if isinstance(columns, Mapping) else "system"
        check_system(self.inspected(step, str(system)), role)
        arguments = {key: value for key, value in values["dataset"].items() if key != "path"}
        settings = {**values, "dataset": arguments}
        inputs = {"data": data.digest, "settings": settings, "base": self.base}
        return Planned(
            step=step.key,
            inputs=lambda: inputs,
            after=after,
            entry=step,
            role=role,
            stage=stage,
            data=data,
            start=start,
            values=values,
            shared=shared,
        )

    def filled(self, step: Planned) -> dict[str, Any]:
        """Return the run file with base and adapters as far as they are trained."""
        adapters = {
            key.partition("/")[2]: folder
            for key, folder in self.ledger.adapters().items()
            if key.startswith(f"{step.role.name}/")
        }
        return dict(_substitute(step.values, self.workspace.base, adapters))

    def folder(self, step: Planned) -> Path:
        """Return the run folder, relative to the workspace; its name depends on what is read."""
        read = [self.ledger.entry(other)["digest"] for other in step.after]
        return Path(
            "runs", step.role.name, f"{step.entry.stage}-{digest([step.inputs(), read])[:8]}"
        )

    def _shared(self, step: Step, role: Role, data: Inspected, beside: Sequence[Step]) -> list[str]:
        """Return the steps of other roles that share rows.

        Raises DataError when either role is isolated, unless that is allowed.
        """
        others = {
            key: (self.ledger.is_isolated(key), self.ledger.fingerprints(key))
            for key in self.ledger.entries()
            if key.split("/")[0] != role.name
        }
        for other in beside:
            if other.role != role.name:
                isolated = self.workspace.role(other.role).isolated
                others[other.key] = isolated, self.inspected(other).marks
        shared = {key: marks for key, (_, marks) in others.items() if data.shares(marks)}
        for key, marks in () if self.allow_shared_data else shared.items():
            if role.isolated or others[key][0]:
                with self.workspace.inside():
                    where = first_shared(data, marks)
                raise DataError(
                    f"{data.name}: {data.shares(marks)} of its rows, prompts or targets are also "
                    f"in the data of {key}. The first is {where}. Role "
                    f"{role.name if role.isolated else key.split('/')[0]!r} is isolated: its data "
                    "never mixes with another role's. Remove them, or add --allow_shared_data (the "
                    "ledger and the card then say so)."
                )
        return list(shared)

    def _values(
        self, step: Step, role: Role, stage: Stage, start: str | None, shared: Sequence[str]
    ) -> Mapping[str, Any]:
        values: dict[str, Any] = {
            "schema": 1,
            "plugin": stage.trainer,
            "dataset": {
                "name": stage.data,
                **stage.dataset,
                "path": step.data,
                "system": role.system,
            },
            "model_name_or_path": BASE,
            "use_peft": True,
            "card": _card(role, step, shared),
            **stage.run,
            # A null in the role wins over the workspace: the stage cannot have that setting.
            **{k: v for k, v in self.workspace.run.items() if stage.run.get(k, v) is not None},
        }
        if self.workspace.base_revision:
            values["model_revision"] = self.workspace.base_revision
        if start is not None:
            values["adapter"] = f"{{adapter:{start}}}"
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


def _upstream(
    step: Step, stage: Stage, trained: Collection[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the stage that a step continues, the first that is trained, and all that it reads.

    Raises ConfigError for a stage that is neither trained nor will be before.
    """
    last = stage.continues[-1] if stage.continues else None
    start = next((name for name in stage.continues if f"{step.role}/{name}" in trained), last)
    names = sorted({*stage.needs(), *filter(None, [start])})
    problems = [
        Problem(
            step.key,
            f"needs the adapter of {step.role}/{name}, which is not trained yet.",
            f"First: hf-rlhf roles train --role {step.role} --stage {name} --data FILE.",
        )
        for name in names
        if f"{step.role}/{name}" not in trained
    ]
    if problems:
        raise ConfigError(problems)
    return start, tuple(f"{step.role}/{name}" for name in names)


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _card(role: Role, step: Step, shared: Sequence[str]) -> dict[str, Any]:
    card = dict(role.card)
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
