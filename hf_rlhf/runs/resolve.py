"""From a run file to a `Run`: every name resolved and every argument checked before weights load.

All problems are reported at once. A step whose ground is missing (the dataset of an unknown
adapter, say) is left out, so that one mistake is not reported as five.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import (
    default_folder,
    is_as_shipped,
    labels_of_rewards,
    without_rewards,
)
from hf_rlhf.config.schema import RunSpec
from hf_rlhf.config.settings import refusals, refused_problems, value_problems
from hf_rlhf.config.validation import check_settings, setting_names
from hf_rlhf.contracts import Loaded, Trainer, as_trainer
from hf_rlhf.distributed import is_planned, rank
from hf_rlhf.errors import (
    ConfigError,
    ModelError,
    PluginError,
    Problem,
)
from hf_rlhf.models.loading import adapter_problems, find_adapter
from hf_rlhf.models.locate import find_model, load_tokenizer
from hf_rlhf.rewards.composed import ComposedReward
from hf_rlhf.runs.components import ComponentBuilder
from hf_rlhf.runs.estimate import disk_problems
from hf_rlhf.runs.preflight import problems_of
from hf_rlhf.runs.preflight_data import scored_columns
from hf_rlhf.runs.run import Run, trains_by_rewards
from hf_rlhf.storage.record import RECORD_NAME


def resolve_run(file: RunFile, *, plugin: str | None = None) -> Run:
    """Resolve and check a whole run. Raises ConfigError with every problem found."""
    return _Preparation(file, plugin).run()


def with_initial_weights(run: Run, file: RunFile) -> Run:
    """Return a run with `file`, whose start alone differs. Raises ConfigError for an unfit one."""
    return _Preparation(file, None).with_initial_weights(run)


@dataclass(frozen=True)
class Scoring:
    """The rows and rewards of a run file without its trainer, as an evaluation needs them."""

    spec: RunSpec
    dataset: Any
    """A `datasets.DatasetDict`."""
    report: Mapping[str, Any]
    reward: ComposedReward | None
    judges: Mapping[str, Any]
    components: Sequence[Mapping[str, Any]]


def resolve_scoring(file: RunFile, tokenizer: Any, *, plugin: str) -> Scoring:
    """Resolve the dataset, judges, rewards and gates of `file`; its settings are not looked at.

    `tokenizer` is for the dataset adapter, `plugin` who asks, where the file names no trainer.
    Raises ConfigError with every problem found.
    """
    return _Preparation(file, plugin).scoring(tokenizer)


class _Preparation(ComponentBuilder):
    """The steps of `resolve_run`, collecting problems; a step that lacks its input is left out."""

    def __init__(self, file: RunFile, plugin: str | None) -> None:
        super().__init__(file)
        self.plugin = plugin or file.plugin

    def run(self) -> Run:
        trainer_class = self._trainer()
        classes = self._config_classes(trainer_class)
        spec, problems = self.file.spec(known_settings=setting_names(classes), plugin=self.plugin)
        self.problems += problems
        if spec is None:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        training, model = self._settings(spec, trainer_class, classes) if classes else (None, None)
        judges = self._judges(spec)
        reward = self._reward(spec, judges)
        path, tokenizer = self._tokenizer(model, training, spec.pad_token)
        folder = Path(training.output_dir).parent if training is not None else None
        loaded = self._dataset(spec, tokenizer, folder)
        adapter = self._adapter(spec)
        if loaded is not None and reward is not None:
            trained = (
                trainer_class is None or trains_by_rewards(trainer_class, training) is not False
            )
            spec, reward = self._without_unfed_monitors(spec, reward, loaded.dataset, trained)
        if loaded is not None and reward is not None:
            self.problems += scored_columns(reward, loaded.dataset, spec, self.file.where)
        if trainer_class is None or training is None or loaded is None or folder is None:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        run = Run(
            spec=spec,
            trainer_class=trainer_class,
            training=training,
            model=model,
            model_path=path,
            tokenizer=tokenizer,
            dataset=loaded.dataset,
            report=loaded.report,
            reward=reward,
            judges=judges,
            folder=folder,
            components=tuple(self.components),
            adapter=adapter,
        )
        result = problems_of(run, self.file.where_key)
        result += disk_problems(run, self.file.where_key) if not result else []
        if result:
            raise ConfigError(result)
        return run

    def _without_unfed_monitors(
        self, spec: RunSpec, reward: ComposedReward, dataset: Any, trained: bool
    ) -> tuple[RunSpec, ComposedReward | None]:
        """Leave out a shipped file's weight-0 rewards whose columns the user's data lacks.

        `trained` is whether the trainer uses rewards at all; if not, all of them are monitors.
        """
        columns = set(dataset["train"].column_names)
        unfed = {
            part.label: sorted(part.needs() - columns)
            for item, part in zip(spec.rewards, reward.rewards, strict=True)
            if part.needs() - columns
            and (part.weight == 0 or not trained)
            and is_as_shipped(self.file, item.path)
        }
        if not unfed:
            return spec, reward
        for label, missing in unfed.items() if rank() == 0 else ():
            print(
                f"note: {label!r}, which {self.file.name} only logs, is left out: it needs the "
                f"column{'s' * (len(missing) > 1)} {', '.join(missing)}, which dataset "
                f"{spec.dataset.name} lacks.",
                flush=True,
            )
        self.file = without_rewards(self.file, unfed)
        self.components = [
            component
            for component in self.components
            if component["kind"] != "rewards" or component["label"] not in unfed
        ]
        remaining = tuple(part for part in reward.rewards if part.label not in unfed)
        changed, _ = self.file.spec(known_settings={}, plugin=self.plugin)
        assert changed is not None, "it was read with these rewards"
        return changed, replace(reward, rewards=remaining) if remaining else None

    def with_initial_weights(self, run: Run) -> Run:
        labels = {reward.label for reward in run.spec.rewards}
        self.file = without_rewards(self.file, labels_of_rewards(self.file) - labels)
        classes = self._config_classes(run.trainer_class)
        spec, problems = self.file.spec(known_settings=setting_names(classes))
        self.problems += problems
        assert spec is not None, "it was checked with another start"
        training, model = self._settings(spec, run.trainer_class, classes)
        path, tokenizer = self._tokenizer(model, training, spec.pad_token)
        new = {"spec": spec, "training": training, "model": model, "model_path": path}
        begun = replace(run, **new, tokenizer=tokenizer, adapter=self._adapter(spec))
        if not self.problems:
            self.problems += [
                replace(problem, where=self.file.where_key(problem.where))
                for problem in adapter_problems(begun)
            ]
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        return begun

    def scoring(self, tokenizer: Any) -> Scoring:
        spec, problems = self.file.spec(known_settings={}, plugin=self.plugin)
        self.problems += problems
        if spec is None:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        judges = self._judges(spec)
        reward = self._reward(spec, judges)
        loaded = self._dataset(spec, tokenizer, None)
        if loaded is not None and reward is not None:
            self.problems += scored_columns(reward, loaded.dataset, spec, self.file.where)
        if self.problems or loaded is None:
            raise ConfigError(list(dict.fromkeys(self.problems)))
        report, components = loaded.report, tuple(self.components)
        return Scoring(spec, loaded.dataset, report, reward, judges, components)

    def _trainer(self) -> type[Trainer] | None:
        if not self.plugin:
            return None
        try:
            trainer = as_trainer(self._load("trainers", self.plugin, self.plugin, {}), self.plugin)
            if trainer.variant_of:
                self._load("trainers", trainer.variant_of, trainer.variant_of, {})
            return trainer
        except PluginError as error:
            unseen = "Until it loads, its settings are not checked."
            self.problems.append(Problem(self.file.where(("plugin",)), str(error), unseen))
            return None

    def _config_classes(self, trainer_class: Any) -> tuple[type, ...]:
        if trainer_class is None:
            return ()
        from trl import ModelConfig

        return trainer_class.Config, ModelConfig

    def _settings(
        self, spec: RunSpec, trainer_class: Any, classes: tuple[type, ...]
    ) -> tuple[Any, Any]:
        """Return the trainer's Config, or None if a setting is wrong, and the ModelConfig."""
        where = self.file.where_key
        self.problems += refused_problems(trainer_class, classes, spec.settings, where)
        refused = refusals(trainer_class)
        rest = {key: value for key, value in spec.settings.items() if key not in refused}
        settings, problems = check_settings(rest, classes, where=where)
        for cls, fitted in zip(classes, settings, strict=True):
            problems += value_problems(cls, fitted, where)
        self.problems += problems
        output_dir = settings[0].get("output_dir")
        folder = Path(output_dir) if output_dir else default_folder(spec.plugin, spec.name)
        settings[0]["output_dir"] = str(folder / "checkpoints")
        settings[0]["report_to"] = settings[0].get("report_to") or "none"
        training = None if problems else self._construct(classes[0], settings[0], spec)
        # Of use even beside a wrong setting: the dataset can be looked at too.
        return training, self._construct(classes[1], settings[1], spec)

    def _construct(self, cls: type, settings: Mapping[str, Any], spec: RunSpec) -> Any:
        try:
            return cls(**settings)
        except (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError) as error:
            # transformers defaults to bf16 and speaks of a setup; a user without a GPU needs a key.
            no_gpu = "bf16" in str(error) and "use_cpu" in str(error)
            fix = "On a machine without a GPU write `use_cpu: true` and `bf16: false`."
            what = f"{cls.__name__} refuses these settings: {error}"
            self.problems.append(Problem(spec.name, what, fix if no_gpu else ""))
            return None

    def _tokenizer(self, model: Any, training: Any, pad: str | None) -> tuple[str, Any]:
        if model is None:
            return "", None
        if not model.model_name_or_path:
            if not self.file.values.get("model_name_or_path"):  # else its type has been reported
                self.problems.append(
                    Problem(
                        self.file.where(("model_name_or_path",)),
                        "is missing.",
                        "Give a Hub id, a folder, or package://PACKAGE/FOLDER.",
                    )
                )
            return "", None
        try:
            path = find_model(model.model_name_or_path)
            return path, load_tokenizer(
                path,
                pad,
                revision=model.model_revision,
                trust_remote_code=getattr(training, "trust_remote_code", False),
            )
        except ModelError as error:
            problem = str(error), ""
        except Exception as error:  # noqa: BLE001 - the tokenizers library raises bare Exception
            name, why = model.model_name_or_path, _first_line(error)
            fix = "Check the name, HF_ENDPOINT, and for a gated model HF_TOKEN."
            problem = f"the tokenizer of {name!r} does not load: {why}", fix
        self.problems.append(Problem(self.file.where(("model_name_or_path",)), *problem))
        return "", None

    def _adapter(self, spec: RunSpec) -> Path | None:
        if spec.adapter is None:
            if spec.adapter_revision is not None:
                where = self.file.where(("adapter_revision",))
                self.problems.append(Problem(where, "is given without `adapter`.", "Remove it."))
            return None
        try:
            return find_adapter(spec.adapter, spec.adapter_revision)
        except ModelError as error:
            self.problems.append(Problem(self.file.where(("adapter",)), str(error)))
            return None

    def _dataset(self, spec: RunSpec, tokenizer: Any, folder: Path | None) -> Loaded | None:
        # One process writes it, and a dry run none. What a run has left out stays listed when it
        # goes on, and when another run is refused its folder.
        writes = folder is not None and rank() == 0 and not is_planned()
        begun = folder is not None and (folder / RECORD_NAME).exists()
        rejected = folder / "rejected_rows.jsonl" if folder and writes and not begun else None
        injected = {"tokenizer": tokenizer, "rejected_rows": rejected}
        component = self._component("datasets", spec.dataset, injected, build=tokenizer is not None)
        if component is None:
            return None
        from datasets import DatasetDict

        loaded = component if isinstance(component, Loaded) else Loaded(component)
        where = self.file.where(("dataset",))
        if not isinstance(loaded.dataset, DatasetDict):
            self.problems.append(
                Problem(
                    where,
                    f"{spec.dataset.name} returned {type(loaded.dataset).__name__}, not a "
                    "DatasetDict.",
                    "An adapter returns its splits: `DatasetDict(train=..., test=...)`.",
                )
            )
            return None
        if "train" not in loaded.dataset or len(loaded.dataset["train"]) == 0:
            self.problems.append(Problem(where, f"{spec.dataset.name} gave no training rows."))
            return None
        return loaded


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
