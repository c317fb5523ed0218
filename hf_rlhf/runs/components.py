"""Builds the components of a run file, and reports failures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from hf_rlhf.config import KeyPath, RunFile, RunSpec
from hf_rlhf.config.components import Kind
from hf_rlhf.config.schema import (
    CallbackSpec,
    DatasetSpec,
    GateSpec,
    RewardSpec,
    Transform,
    keys_of,
)
from hf_rlhf.config.validation import accepted_by, bind
from hf_rlhf.contracts import Loaded, Trainer, as_trainer
from hf_rlhf.data.mixture import MixedSource
from hf_rlhf.data.table_rows import trainable_rows
from hf_rlhf.distributed import is_elsewhere, is_planned, rank
from hf_rlhf.environments.toolset import Toolset
from hf_rlhf.errors import (
    ConfigError,
    DataError,
    HfRlhfError,
    ModelError,
    PluginError,
    Problem,
    RewardError,
    first_line,
)
from hf_rlhf.models.locate import (
    check_tokenizer,
    find_model,
    load_processing,
    load_tokenizer,
    resolve_model_path,
    tokenizer_digest,
)
from hf_rlhf.rewards.abstentions import Abstentions
from hf_rlhf.rewards.composed import ComposedReward, Part
from hf_rlhf.rewards.functions import reward_maker
from hf_rlhf.storage.record import RECORD_NAME


class ComponentBuilder:
    """Builds the components of a run file; collects their problems and their provenance."""

    def __init__(self, file: RunFile, plugin: str | None) -> None:
        self.file = file
        self.plugin = plugin or file.plugin
        self.problems: list[Problem] = []
        self.components: list[Mapping[str, Any]] = []

    def trainer(self) -> type[Trainer] | None:
        """Return the trainer; report a failure and return None."""
        if not self.plugin:
            return None
        try:
            name, path = self.plugin, ("plugin",)
            trainer = as_trainer(self._load("trainers", name, name, {}, path), name)
            if base := trainer.variant_of:
                self._load("trainers", base, base, {}, path)
            return trainer
        except PluginError as error:
            fix = "Until it loads, its settings are not checked."
            self.problems.append(Problem(self.file.where(("plugin",)), str(error), fix))
            return None

    def build(
        self, spec: RunSpec, trainer: Any, training: Any, model: Any, folder: Path | None
    ) -> dict[str, Any]:
        """Return a `Run`'s components, and `loaded`; None for components that fail to build."""
        judges = self._judges(spec)
        reward = self._reward(spec, judges)
        toolset = self._toolset(spec, getattr(training, "max_tool_calling_iterations", None))
        if reward is not None and toolset is not None:
            reward = replace(reward, logs_turns=True)
        callbacks = tuple(self._component("callbacks", each, {}) for each in spec.callbacks)
        path, tokenizer = self._tokenizer(spec, model, training, trainer)
        return {
            "judges": judges,
            "reward": reward,
            "toolset": toolset,
            "callbacks": callbacks,
            "model_path": path,
            "tokenizer": tokenizer,
            "loaded": self._dataset(spec, tokenizer, folder, getattr(trainer, "columns", ())),
        }

    def _load(self, kind: Kind, name: str, label: str, arguments: Any, path: KeyPath) -> Any:
        component = self.file.component(kind, name, path)
        entry = {"kind": kind, "name": name, "label": label, "arguments": dict(arguments)}
        self.components.append({**entry, **component.provenance})
        return component.target

    def _component(
        self, kind: Kind, spec: Any, injected: Mapping[str, Any], *, build: bool = True
    ) -> Any:
        """Build a component; report a failure and return None.

        Without `build`, only its name and arguments are checked.
        """
        factory = self._factory(kind, spec, injected)
        return self._call(spec, factory) if factory is not None and build else None

    def _factory(
        self, kind: Kind, spec: Any, injected: Mapping[str, Any]
    ) -> Callable[[], Any] | None:
        """Return a component's factory; report a wrong name or argument and return None."""
        path = spec.path
        label, reads = getattr(spec, "label", spec.name), getattr(spec, "reads", None)
        for each in (each for each in reads or () if not Path(each).expanduser().exists()):
            what = f"there is no file {each!r} in {Path().absolute()}."
            self.problems.append(Problem(self.file.where((*path, "reads")), what))
        try:
            component = self._load(kind, spec.name, label, spec.arguments, (*path, "name"))
            if reads is not None:
                self.components[-1] = {**self.components[-1], "files": reads}
        except PluginError as error:
            self.problems.append(Problem(self.file.where((*path, "name")), str(error)))
            return None
        target = _maker(kind, component, spec.arguments)
        arguments, problems = bind(
            target,
            spec.arguments,
            where=lambda key: self.file.where((*path, key)),
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
        """Return the result of `factory`; report an error and return None."""
        path = spec.path
        try:
            return factory()
        except ConfigError as error:  # of components within this one
            self.problems += error.problems
        except HfRlhfError as error:
            self.problems.append(Problem(self.file.where(path), str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - plugin code may raise anything
            self.problems.append(
                Problem(
                    self.file.where(path),
                    f"{spec.name} rejects these arguments: {type(error).__name__}: {error}",
                )
            )
        return None

    def _tokenizer(
        self, spec: RunSpec, model: Any, training: Any, trainer: Any, loaded: Any = None
    ) -> tuple[str, Any]:
        """Return the path of the model, and the tokenizer; `loaded`: a separate tokenizer."""
        if model is None:
            return "", None
        if not model.model_name_or_path:
            if not self.file.values.get("model_name_or_path"):  # else its type has been reported
                where = self.file.where(("model_name_or_path",))
                fix = "Write a Hub id, a folder, or package://PACKAGE/FOLDER."
                self.problems.append(Problem(where, "is missing.", fix))
            return "", None
        own = spec.tokenizer
        key, name = "model_name_or_path", model.model_name_or_path
        wanted = (spec.pad_token, spec.chat_template, spec.eos_token)
        options: dict[str, Any] = {
            "trust_remote_code": getattr(training, "trust_remote_code", False)
        }
        try:
            path = find_model(name)
            kind = getattr(trainer, "auto_processor", "AutoTokenizer")
            if own is None or kind != "AutoTokenizer":
                options["revision"] = model.model_revision
                return path, load_processing(path, kind, *wanted, **options)
            key, name = "tokenizer", own
            tokenizer = self.file.objects.get(own) if loaded is None else loaded
            if tokenizer is None:
                tokenizer = load_tokenizer(resolve_model_path(own), *wanted, **options)
            elif loaded is None:
                check_tokenizer(own, tokenizer, *wanted)
            self.components.append(
                {"kind": "tokenizer", "name": own, "sha256": tokenizer_digest(tokenizer)}
            )
            return path, tokenizer
        except ModelError as error:
            fix = "Until it loads, the rows are not checked."
            if is_elsewhere():
                fix += (
                    " A plan needs no weights: a folder with config.json and the tokenizer will do."
                )
            problem = str(error), fix
        except Exception as error:  # noqa: BLE001 - the tokenizers library raises bare Exception
            fix = "Check the name, HF_ENDPOINT, and for a gated model HF_TOKEN."
            problem = f"the tokenizer of {name!r} does not load: {first_line(error)}", fix
        self.problems.append(Problem(self.file.where((key,)), *problem))
        return "", None

    def _dataset(
        self, spec: RunSpec, tokenizer: Any, folder: Path | None, columns: Collection[str] = ()
    ) -> Loaded | None:
        # One process writes the file, and a dry run none. It is unchanged when the run resumes, or
        # when another run's folder is refused.
        writes = folder is not None and rank() == 0 and not is_planned()
        begun = folder is not None and (folder / RECORD_NAME).exists()
        rejected = folder / "rejected_rows.jsonl" if folder and writes and not begun else None
        loaded = self._loaded(spec.dataset, tokenizer, rejected)
        try:
            return loaded and trainable_rows(loaded, columns)
        except DataError as error:
            self.problems.append(Problem(self.file.where(spec.dataset.path), str(error)))
            return None

    def _loaded(
        self, spec: DatasetSpec, tokenizer: Any, rejected_rows: Path | None
    ) -> Loaded | None:
        """Build a dataset; report a failure, or no training rows, and return None."""
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
        """Load the `sources` of a dataset. Raises ConfigError with all problems."""
        builder = ComponentBuilder(self.file, self.plugin)
        specs, builder.problems = self.file.sources((*spec.path, "sources"), entries)
        sources = []
        for source in specs:
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

    def _toolset(self, spec: RunSpec, max_rounds: int | None) -> Toolset | None:
        """Return the run's tools and environment; report a broken one and return None."""
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

    def _tool(self, spec: CallbackSpec) -> Callable[..., Any] | None:
        """Return a tool function; report a failure and return None."""
        if spec.arguments:
            where = self.file.where(spec.path)
            what = f"{spec.name} takes no arguments from a run: the model passes them."
            self.problems.append(Problem(where, what, "Use the method of an environment."))
        try:
            path = (*spec.path, "name")
            tool: Callable[..., Any] = self._load("tools", spec.name, spec.label, {}, path)
        except PluginError as error:
            self.problems.append(Problem(self.file.where(spec.path), str(error)))
            return None
        return tool

    def _part(
        self,
        spec: RewardSpec | GateSpec,
        judges: Mapping[str, Any],
        run: RunSpec,
    ) -> Part | None:
        labels = [judge.label for judge in run.judges]
        if problem := self._judge_problem(spec, labels):
            self.problems.append(Problem(self.file.where((*spec.path, "judge")), *problem))
        chosen = spec.judge or (labels[0] if len(labels) == 1 else None)
        injected = {"judge": judges.get(chosen) if chosen else None}
        # If the judge could not be built, that has been reported: do not report the reward too.
        build = problem is None and (chosen is None or chosen in judges)
        reward = self._component("rewards", spec, injected, build=build)
        if reward is None:
            return None
        origin = self.components[-1]
        source = " ".join(filter(None, (origin["package"], origin["version"]))) or origin["target"]
        if isinstance(spec, GateSpec):
            return Part(spec.label, reward, threshold=spec.threshold, source=source)
        # Text is `sigmoid`, the only transform that needs no number.
        transform = Transform(sigmoid=1.0) if isinstance(spec.transform, str) else spec.transform
        settings = (spec.weight, spec.on_none, spec.clip, transform)
        return Part(spec.label, reward, *settings, source=source)

    def _judge_problem(
        self, spec: RewardSpec | GateSpec, labels: Sequence[str]
    ) -> tuple[str, str] | None:
        """Return the problem with the judge of a reward and its fix, or None."""
        known = ", ".join(labels)
        if spec.judge is not None and spec.judge not in labels:
            fix = f"Labels under `judges`: {known or 'none'}."
            return f"no judge is labelled {spec.judge!r}.", fix
        try:
            reward = self.file.component("rewards", spec.name, (*spec.path, "name")).target
            takes = "judge" in accepted_by(_maker("rewards", reward, spec.arguments))
        except PluginError:
            return None  # reported where it is built
        if spec.judge and not takes:
            return f"{spec.name} does not use a judge.", "Remove it."
        if takes and not spec.judge and len(labels) > 1:
            return f"{spec.name} needs a judge, but none is set.", f"Write `judge:`, of {known}."
        return None


def _maker(kind: Kind, component: Any, arguments: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the callable that builds a component from its entry's arguments."""
    if isinstance(component, type):
        return component
    if isinstance(component, FunctionType):
        return reward_maker(component, arguments) if kind == "rewards" else component

    def instance() -> Any:
        return component

    instance.__name__ = type(component).__name__
    return instance
