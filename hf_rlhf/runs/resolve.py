"""Resolve a run file to a `Run`: all names and arguments are checked before weights load.

All problems are reported at once. Parts that depend on a missing part (such as the dataset of an
unknown adapter) are not checked, so that a single mistake is not reported five times.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_rlhf.config.run_file import RunFile, default_folder
from hf_rlhf.config.schema import RunSpec
from hf_rlhf.config.settings import refusals, refused_problems, value_problems
from hf_rlhf.config.validation import check_settings, setting_names
from hf_rlhf.contracts import Trainer
from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.errors import ConfigError, ModelError, Problem, problems_of_several
from hf_rlhf.evaluation.scoring import Scoring
from hf_rlhf.models.loading import find_adapter
from hf_rlhf.models.lora_checks import adapter_problems
from hf_rlhf.runs.components import ComponentBuilder
from hf_rlhf.runs.estimate import disk_problems, final_state, planned_steps
from hf_rlhf.runs.phases import (
    SECTION,
    apply_to_all,
    check_phases,
    phase_files,
)
from hf_rlhf.runs.preflight import problems_of
from hf_rlhf.runs.preflight_data import scored_columns
from hf_rlhf.runs.run import Phase, Run


def resolve_run(
    file: RunFile, *, plugin: str | None = None, python_keys: Collection[str] = ()
) -> Run:
    """Resolve and check a whole run, with all of its phases.

    Args:
        file: the run file with its options applied.
        plugin: the trainer, if not in the file.
        python_keys: top-level keys set from Python, which apply to all phases like options.

    Raises:
        ConfigError: all problems in all phases.
    """
    if ":" in (plugin or ""):  # a file in an option is in the working directory
        file = replace(file, overrides={("plugin",): "--plugin", **file.overrides})
    preparation = _Preparation(file, plugin)
    trainer = preparation.trainer()
    if trainer is not None and trainer.phase_trainer is not None:
        component = preparation.components[0]
        return _resolve_phases(file, component, trainer.phase_trainer, python_keys)
    return preparation.run(trainer)


def with_settings(run: Run, settings: Mapping[str, Any]) -> Run:
    """Return a run with other settings or another start, with the same rows and rewards.

    A setting that is None is removed. Raises ConfigError for what does not fit the run.
    """
    values = {
        key: value
        for key, value in {**run.spec.plain, **settings}.items()
        if key not in settings or value is not None
    }
    return _Preparation(RunFile.from_mapping(values, run.spec.name), None).with_settings(run)


def _resolve_phases(
    file: RunFile, component: Mapping[str, Any], trainer: str, python_keys: Collection[str]
) -> Run:
    """Return the run of `file`: its last phase, but starting from the base and in its own folder.

    `component` is the trainer of the whole run, `trainer` the name of the phases' trainer.
    """
    plugin = str(component["name"])
    check_phases(file)
    file = apply_to_all(file, python_keys)
    folder = Path(file.values.get("output_dir") or default_folder(plugin, file.name))
    files = phase_files(file, trainer, folder)
    phases: list[Phase] = []
    problems: dict[str, list[Problem]] = {}
    for number, phase in enumerate(files, start=1):
        problems[f"phase {phase.name}"] = []
        try:
            phases.append(Phase(number, phase.name, resolve_run(phase.file), phase.data))
        except ConfigError as error:
            problems[f"phase {phase.name}"] = list(error.problems)
    if any(problems.values()):
        raise file.refusal(problems_of_several(problems))
    last = phases[-1].run
    spec = _spec_of_all(file, files[-1].file, plugin, [phase.run for phase in phases])
    return replace(
        last,
        # The whole run also drops what a phase dropped.
        spec=replace(spec, rewards=last.spec.rewards),
        folder=folder,
        components=(component, *last.components),
        phase_list=tuple(phases),
    )


def _spec_of_all(file: RunFile, last: RunFile, plugin: str, runs: Sequence[Run]) -> RunSpec:
    """Return the spec of the whole run: the last phase's, except `publish` and `card`.

    Raises ConfigError for their problems, and for values that must not differ between phases.
    """
    common = {"plugin": plugin, **{key: file.values.get(key) for key in ("publish", "card")}}
    last = replace(last, values={**last.values, **common})
    spec, problems = last.spec(allowed_settings={}, plugin=plugin)
    if spec is None:  # a secret in `publish`, which the phases do not have
        raise file.refusal(problems)
    if spec.publish.checkpoints:
        fix = "A phase can be published by itself: hf-rlhf publish FOLDER/phases/1-NAME."
        where = file.where(("publish", "checkpoints"))
        problems.append(Problem(where, "is not supported in a run with phases.", fix))
    kinds = {"use_peft": {run.model.use_peft for run in runs}, "plugin": {run.task for run in runs}}
    fix = "Each phase continues the model of the one before it."
    problems += [
        Problem(file.where((SECTION,)), f"`{key}` differs between phases.", fix)
        for key, values in kinds.items()
        if len(values) > 1
    ]
    if problems:
        raise file.refusal(list(dict.fromkeys(problems)))
    plain = {**file.values, "plugin": plugin}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    return replace(spec, plain=plain, sha256=digest)


def resolve_scoring(file: RunFile, tokenizer: Any, *, plugin: str) -> Scoring:
    """Resolve the dataset, judges, rewards and gates of `file`, ignoring its settings.

    `tokenizer` is for the dataset adapter; `plugin` is for messages if the file names no trainer.
    Raises ConfigError with every problem.
    """
    return _Preparation(file, plugin).scoring(tokenizer)


class _Preparation(ComponentBuilder):
    """The steps of `resolve_run`, collecting problems; a step without its input is skipped."""

    def run(self, trainer_class: type[Trainer] | None) -> Run:
        classes = self._config_classes(trainer_class)
        spec, problems = self.file.spec(allowed_settings=setting_names(classes), plugin=self.plugin)
        self.problems += problems
        if spec is None:
            raise self._error()
        training, model = self._settings(spec, trainer_class, classes) if classes else (None, None)
        folder = Path(training.output_dir).parent if training is not None else None
        parts = self.build(spec, trainer_class, training, model, folder)
        loaded, reward = parts.pop("loaded"), parts.pop("reward")
        adapter = self._adapter(spec)
        if loaded is not None and reward is not None:
            self.problems += scored_columns(reward, loaded.dataset, spec, self.file.where)
        if trainer_class is None or training is None or loaded is None or folder is None:
            raise self._error()
        if self.problems:
            raise self._error()
        run = Run(
            spec=spec,
            trainer_class=trainer_class,
            training=training,
            model=model,
            dataset=loaded.dataset,
            report=loaded.report,
            reward=reward,
            folder=folder,
            components=tuple(self.components),
            adapter=adapter,
            **parts,
        )
        where = self.file.where_key
        self.problems += problems_of(run, where)
        if not self.problems and not is_elsewhere():
            self.problems += disk_problems(run, where)
        if self.problems:
            raise self._error()
        if reward is not None:
            reward.final_state = final_state(planned_steps(run), training.num_train_epochs)
        return run

    def _error(self) -> ConfigError:
        return self.file.refusal(list(dict.fromkeys(self.problems)))

    def with_settings(self, run: Run) -> Run:
        classes = self._config_classes(run.trainer_class)
        spec, self.problems = self.file.spec(allowed_settings=setting_names(classes))
        assert spec is not None, "it was checked with other settings"
        training, model = self._settings(spec, run.trainer_class, classes)
        path, tokenizer = self._tokenizer(spec, model, training, run.trainer_class, run.tokenizer)
        new = {"spec": spec, "training": training, "model": model, "model_path": path}
        begun = replace(run, **new, tokenizer=tokenizer, adapter=self._adapter(spec))
        if self.problems:
            raise self._error()
        self.problems += [
            replace(problem, where=self.file.where_key(problem.where))
            for problem in adapter_problems(begun)
        ]
        if self.problems:
            raise self._error()
        return begun

    def scoring(self, tokenizer: Any) -> Scoring:
        spec, problems = self.file.spec(allowed_settings={}, plugin=self.plugin)
        self.problems += problems
        if spec is None:
            raise self._error()
        if spec.environment is not None or spec.tools:
            key = "environment" if spec.environment is not None else "tools"
            what = "is set, and the completions would be written without it."
            fix = "The run itself measures with it, before and after training: `evaluation:`."
            self.problems.append(Problem(self.file.where((key,)), what, fix))
        judges = self._judges(spec)
        reward = self._reward(spec, judges)
        loaded = self._dataset(spec, tokenizer, None)
        if loaded is not None and reward is not None:
            self.problems += scored_columns(reward, loaded.dataset, spec, self.file.where)
        if self.problems or loaded is None:
            raise self._error()
        if reward is not None:
            reward.final_state = final_state(1, 1.0)
        components = tuple(self.components)
        return Scoring(spec, loaded.dataset, loaded.report, reward, judges, components)

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
        folder = Path(output_dir) if output_dir else spec.default_folder
        settings[0]["output_dir"] = str(folder / "checkpoints")
        settings[0]["report_to"] = settings[0].get("report_to") or "none"
        training = None if problems else self._construct(classes[0], settings[0], spec)
        # Built even if a setting is wrong, so that the dataset is checked as well.
        return training, self._construct(classes[1], settings[1], spec)

    def _construct(self, cls: type, settings: Mapping[str, Any], spec: RunSpec) -> Any:
        try:
            # transformers would refuse bf16 here; nothing of a plan is trained.
            here = (
                {"use_cpu": True, "tf32": None} if is_elsewhere() and hasattr(cls, "tf32") else {}
            )
            return cls(**{**settings, **here})
        except (ValueError, TypeError, ArithmeticError, ImportError, RuntimeError) as error:
            # transformers' message names no setting that a user without a GPU can change.
            fix = ""
            if "bf16" in str(error) and "use_cpu" in str(error):
                fix = "On a machine without a GPU write `use_cpu: true` and `bf16: false`; to plan "
                fix += "for another machine: `hf-rlhf check --for 8xH100`."
            elif "load_best_model_at_end" in str(error):
                fix = "Set `save_strategy` and `save_steps` as `eval_strategy` and `eval_steps`."
            what = f"the settings do not fit together ({cls.__name__}): {error}"
            self.problems.append(Problem(spec.name, what, fix))
            return None

    def _adapter(self, spec: RunSpec) -> Path | None:
        if spec.adapter is None:
            if spec.adapter_revision is not None:
                where = self.file.where(("adapter_revision",))
                self.problems.append(Problem(where, "is set without `adapter`.", "Remove it."))
            return None
        try:
            return find_adapter(spec.adapter, spec.adapter_revision)
        except ModelError as error:
            self.problems.append(Problem(self.file.where(("adapter",)), str(error)))
            return None
