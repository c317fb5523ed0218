"""Builds the components named in a run file, and reports those that cannot be built."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile, RunSpec, registry
from hf_rlhf.config.schema import DatasetSpec, GateSpec, RewardSpec, SpecReader, keys_of
from hf_rlhf.config.validation import accepted_by, bind
from hf_rlhf.contracts import Loaded
from hf_rlhf.data.mixture import MixedSource
from hf_rlhf.errors import ConfigError, HfRlhfError, PluginError, Problem, RewardError
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
        if problems or not build:
            return None
        accepted = accepted_by(target)
        arguments |= {key: value for key, value in injected.items() if key in accepted}
        try:
            return target(**arguments)
        except ConfigError as error:  # of components within this one
            self.problems += error.problems
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

    def _loaded(
        self, spec: DatasetSpec, tokenizer: Any, rejected_rows: Path | None
    ) -> Loaded | None:
        """Build a dataset; None, reported, if it cannot be or has nothing to train on."""
        injected = {
            "tokenizer": tokenizer,
            "rejected_rows": rejected_rows,
            "load_sources": partial(self._load_sources, spec, tokenizer, rejected_rows),
        }
        component = self._component("datasets", spec, injected, build=tokenizer is not None)
        if component is None:
            return None
        from datasets import DatasetDict

        loaded = component if isinstance(component, Loaded) else Loaded(component)
        where = self.file.where(spec.path)
        if not isinstance(loaded.dataset, DatasetDict):
            kind = type(loaded.dataset).__name__
            what = f"{spec.name} returned {kind}, not a DatasetDict."
            fix = "An adapter returns its splits: `DatasetDict(train=..., test=...)`."
            self.problems.append(Problem(where, what, fix))
            return None
        if "train" not in loaded.dataset or len(loaded.dataset["train"]) == 0:
            self.problems.append(Problem(where, f"{spec.name} returned no training rows."))
            return None
        return loaded

    def _load_sources(
        self,
        spec: DatasetSpec,
        tokenizer: Any,
        rejected_rows: Path | None,
        entries: Sequence[Mapping[str, Any]],
    ) -> list[MixedSource]:
        """Load the `sources` of a dataset. Raises ConfigError with the problems of all of them."""
        builder = ComponentBuilder(self.file)
        reader = SpecReader(self.file.values, self.file.where, (), builder.problems)
        sources = []
        for source in reader.sources((*spec.path, "sources"), entries):
            rejected = rejected_rows
            if rejected is not None:
                rejected = rejected.with_stem(f"{rejected.stem}_{source.label}")
            loaded = builder._loaded(source, tokenizer, rejected)
            if loaded is not None:
                kwargs = source.arguments.get("chat_template_kwargs") or {}
                data = loaded.dataset, loaded.report, kwargs
                sources.append(MixedSource(source.label, source.weight, *data))
        self.components += builder.components
        if builder.problems:
            raise ConfigError(builder.problems)
        return sources

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
