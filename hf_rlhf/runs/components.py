"""Builds the components named in a run file, and reports those that cannot be built."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from hf_rlhf.config import RunFile, RunSpec, registry
from hf_rlhf.config.schema import GateSpec, RewardSpec, ToolSpec, keys_of
from hf_rlhf.config.validation import accepted_by, bind
from hf_rlhf.environments.toolset import Toolset
from hf_rlhf.errors import HfRlhfError, PluginError, Problem, RewardError
from hf_rlhf.rewards.abstentions import Abstentions
from hf_rlhf.rewards.composed import ComposedReward, Part


class ComponentBuilder:
    """Builds the components of one run file; collects their problems and their provenance."""

    def __init__(self, file: RunFile) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.components: list[Mapping[str, Any]] = []

    def _load(self, kind: registry.Kind, name: str, label: str, arguments: Any) -> Any:
        component = registry.load_component(kind, name)
        self.components.append(
            {
                "kind": kind,
                "name": name,
                "label": label,
                "arguments": dict(arguments),
                **registry.provenance(kind, name),
            }
        )
        return component

    def _component(
        self,
        kind: registry.Kind,
        spec: Any,
        injected: Mapping[str, Any],
        *,
        build: bool = True,
    ) -> Any:
        """Build one component; if that fails, report the problem and return None.

        Without `build` its name and arguments are checked, and that is all.
        """
        factory = self._factory(kind, spec, injected)
        return self._call(spec, factory) if factory is not None and build else None

    def _factory(
        self, kind: registry.Kind, spec: Any, injected: Mapping[str, Any]
    ) -> Callable[[], Any] | None:
        """Return what builds a component; None, reported, for a wrong name or argument."""
        path = spec.path
        label = getattr(spec, "label", spec.name)
        try:
            target = self._load(kind, spec.name, label, spec.arguments)
        except PluginError as error:
            self.problems.append(Problem(self.file.where((*path, "name")), str(error)))
            return None
        where = partial(_inside, self.file, path)
        arguments, problems = bind(
            target,
            spec.arguments,
            where=where,
            injected=injected,
            beside=keys_of(type(spec)),
        )
        self.problems += problems
        if problems:
            return None
        accepted = accepted_by(target)
        arguments |= {key: value for key, value in injected.items() if key in accepted}
        return partial(target, **arguments)

    def _call(self, spec: Any, factory: Callable[[], Any]) -> Any:
        """Return what `factory` builds; None, reported, if it raises."""
        path = spec.path
        try:
            return factory()
        except HfRlhfError as error:
            self.problems.append(Problem(self.file.where(path), str(error)))
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            self.problems.append(
                Problem(
                    self.file.where(path),
                    f"{spec.name} rejects these arguments: {type(error).__name__}: {error}",
                )
            )
        return None

    def _judges(self, spec: RunSpec) -> dict[str, Any]:
        built = {judge.label: self._component("judges", judge, {}) for judge in spec.judges}
        return {label: judge for label, judge in built.items() if judge is not None}

    def _reward(self, spec: RunSpec, judges: Mapping[str, Any]) -> ComposedReward | None:
        rewards = [self._part(reward, judges, spec) for reward in spec.rewards]
        gates = [self._part(gate, judges, spec) for gate in spec.gates]
        if not rewards or None in (*rewards, *gates):
            return None  # nothing to compose, or reported already
        try:
            return ComposedReward(
                tuple(rewards),  # type: ignore[arg-type]
                tuple(gates),  # type: ignore[arg-type]
                abstentions=Abstentions(spec.limits.max_steps_without_reward),
            )
        except RewardError:
            return None  # two share a label, which the run file's own check has reported

    def _toolset(self, spec: RunSpec, max_rounds: int | None) -> Toolset | None:
        """Return what the model may call while it writes; None, reported, if that is broken."""
        tools = [tool for each in spec.tools if (tool := self._tool(each)) is not None]
        build, name = None, ""
        if spec.environment is not None:
            name = spec.environment.name
            build = self._factory("environments", spec.environment, {})
        if len(tools) < len(spec.tools) or (spec.environment is not None and build is None):
            return None
        toolset = Toolset(tuple(tools), build, name, max_rounds)
        if build is not None and self._call(spec.environment, lambda: toolset.example) is None:
            return None
        return toolset if build is not None or tools else None

    def _tool(self, spec: ToolSpec) -> Callable[..., Any] | None:
        """Return a function that the model may call; None, reported, if it does not load."""
        module, _, attribute = spec.name.rpartition(":")
        try:
            function: Callable[..., Any] = getattr(import_module(module), attribute)
        except Exception as error:  # noqa: BLE001 - code of the user may raise anything
            what = f"{spec.name!r} does not load: {type(error).__name__}: {error}"
            self.problems.append(Problem(self.file.where(spec.path), what))
            return None
        component = {"kind": "tools", "name": spec.name, "label": attribute, "arguments": {}}
        source = {"package": None, "version": None, "target": spec.name}
        self.components.append({**component, **source})
        return function

    def _part(
        self,
        spec: RewardSpec | GateSpec,
        judges: Mapping[str, Any],
        run: RunSpec,
    ) -> Part | None:
        labels = [judge.label for judge in run.judges]
        if spec.judge is not None and spec.judge not in labels:
            where = self.file.where((*spec.path, "judge"))
            fix = f"Labels under `judges`: {', '.join(labels)}."
            if not labels:
                fix = f"Declare it: `judges: {{{spec.judge}: {{name: lexical}}}}` (or openai)."
            self.problems.append(Problem(where, f"no judge is labelled {spec.judge!r}.", fix))
            self._component("rewards", spec, {"judge": None}, build=False)
            return None
        chosen = spec.judge or (labels[0] if len(labels) == 1 else None)
        injected = {"judge": judges.get(chosen) if chosen else None}
        # If the judge could not be built, that has been reported: do not report the reward too.
        build = chosen is None or chosen in judges
        build &= not self._misplaced_judge(spec, labels)
        reward = self._component("rewards", spec, injected, build=build)
        if reward is None:
            return None
        source = " ".join(self.components[-1][key] for key in ("package", "version"))
        if isinstance(spec, GateSpec):
            return Part(spec.label, reward, threshold=spec.threshold, source=source)
        return Part(spec.label, reward, spec.weight, spec.on_none, spec.clip, source=source)

    def _misplaced_judge(self, spec: RewardSpec | GateSpec, labels: Sequence[str]) -> bool:
        """Report a judge given to a reward that takes none, or a missing choice of judge."""
        try:
            takes = "judge" in accepted_by(registry.load_component("rewards", spec.name))
        except PluginError:
            return False  # reported where it is built
        where = self.file.where((*spec.path, "judge"))
        if spec.judge and not takes:
            self.problems.append(Problem(where, f"{spec.name} does not use a judge.", "Remove it."))
            return True
        if takes and not spec.judge and len(labels) > 1:
            fix = f"Write `judge:` with one of {', '.join(labels)}."
            self.problems.append(
                Problem(where, f"{spec.name} needs a judge, but none is set.", fix)
            )
            return True
        return False


def _inside(file: RunFile, path: Sequence[str | int], key: str) -> str:
    return file.where((*path, key))
