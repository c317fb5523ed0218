"""Checks of a run's LoRA, new or continued, before any weights load."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import ModelError, Problem, first_line
from hf_rlhf.models.adapter import (
    CLASSIFIERS,
    LoraAdapter,
    check_head,
    is_target,
    read_adapter,
)
from hf_rlhf.models.loading import PEFT_TASKS, check_adapter_base, lora_config, skeleton

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

_SETTINGS = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
"""Setting of trl.ModelConfig -> key of adapter_config.json."""


def adapter_problems(run: "Run") -> Iterator[Problem]:
    """Yield the problems of the run's LoRA, new or continued, before any weights load."""
    task_type, expected = run.spec.settings.get("lora_task_type"), PEFT_TASKS.get(run.task)
    if None not in (task_type, expected) and task_type != expected:
        what = f"is {task_type!r}, and what {run.spec.plugin} trains is {run.task}."
        yield Problem("lora_task_type", what, f"Leave it out: it is {expected}.")
    if run.adapter is None:
        return
    if not run.model.use_peft:
        fix = "Write `use_peft: true`, or name the merged model as `model_name_or_path`."
        yield Problem("adapter", "is set, and the run trains all weights.", fix)
        return
    try:
        adapter = read_adapter(run.adapter)
        check_head(adapter)
        check_adapter_base(run, run.adapter)
        _check_shapes(run, adapter)
    except ModelError as error:
        yield Problem("adapter", str(error))
        return
    yield from _disagreements(run, adapter.config)
    if run.writes_text and adapter.config.get("task_type") in CLASSIFIERS:
        yield Problem(
            "adapter",
            "is one of a classification model: it has a score head, and this run generates text.",
            "Name an adapter of a text generation model.",
        )


def lora_problems(run: "Run") -> Iterator[Problem]:
    """Yield the target names of a new LoRA that match no module.

    peft raises only if none exists, after weights are loaded, and ignores missing names otherwise.
    """
    if run.adapter is not None or not run.model.use_peft:
        return
    try:
        config, model = lora_config(run), skeleton(run)
    except ValueError:
        return  # a kind of model that only its trainer can build
    assert config is not None
    modules = [name for name, _ in model.named_modules() if name]
    targets = config.target_modules
    try:
        problems = [
            *_missing("lora_target_modules", targets, modules),
            *_missing("lora_modules_to_save", config.modules_to_save, modules),
            *_head_problem(run, targets, model),
        ]
    except re.error as error:
        what = f"{targets!r} is not a valid regular expression: {error}."
        problems = [Problem("lora_target_modules", what, "Write names of modules.")]
    yield from problems
    if problems:
        return
    from peft import get_peft_model

    try:
        get_peft_model(model, config, low_cpu_mem_usage=True)
    except (ValueError, TypeError, NotImplementedError) as error:
        yield Problem("lora_target_modules", f"peft refuses this LoRA: {first_line(error)}")


def _check_shapes(run: "Run", adapter: LoraAdapter) -> None:
    """Raise ModelError for an adapter whose matrices fit no module of the base."""
    try:
        modules = dict(skeleton(run).named_modules())
    except ValueError:
        return  # a kind of model that only its trainer can build
    base_name = adapter.config.get("base_model_name_or_path")
    for name, edit in adapter.edits.items():
        weight = getattr(modules.get(name), "weight", None)
        if weight is None:
            raise ModelError(
                f"{adapter.folder} changes {name}, which {run.model.model_name_or_path} does not "
                f"have. It was made for {base_name}."
            )
        expected = (edit.b.shape[0], edit.a.shape[1])
        if tuple(weight.shape) not in (expected, expected[::-1]):
            raise ModelError(
                f"{adapter.folder} was made for another base ({base_name}): its {name} is for a "
                f"weight of {expected}, that of {run.model.model_name_or_path} is "
                f"{tuple(weight.shape)}."
            )


def _disagreements(run: "Run", config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the LoRA settings that differ from the continued adapter's."""
    for setting, key in _SETTINGS.items():
        value, saved = run.spec.settings.get(setting), config.get(key)
        if value is None or _plain(value) in (_plain(saved), ["all-linear"]):
            continue
        if key == "target_modules" and _modules(run, value) == _modules(run, saved):
            continue  # peft saves whole names of modules
        yield Problem(
            setting,
            f"is {value!r}, and the adapter that is continued has {saved!r}.",
            "Leave it out, or write the adapter's own value, which it keeps.",
        )


def _modules(run: "Run", names: Any) -> set[str]:
    """Return the base's modules that a LoRA on `names` (full names or suffixes) changes."""
    listed = _plain(names) or []
    try:
        modules = [name for name, _ in skeleton(run).named_modules()]
    except ValueError:
        return set(listed)  # a kind of model that only its trainer can build
    return {module for module in modules if is_target(module, listed)}


def _plain(value: Any) -> Any:
    """Return a setting in canonical form: names as a sorted list."""
    names = [value] if isinstance(value, str) else value
    return sorted(names) if isinstance(names, list | tuple) else value or None


def _missing(key: str, names: Any, modules: list[str]) -> Iterator[Problem]:
    if not names or names == "all-linear":
        return
    # Text is a pattern and must be matched as a pattern.
    targets = {names: names} if isinstance(names, str) else {name: [name] for name in sorted(names)}
    missing = [
        name for name, target in targets.items() if not any(is_target(m, target) for m in modules)
    ]
    if missing:
        ends = sorted({name.rpartition(".")[2] for name in modules})
        choices = ", ".join(end for end in ends if not end.isdigit())
        every = "`[all-linear]`, or some of: " if key == "lora_target_modules" else "some of: "
        what = f"names {', '.join(missing)}, which the model does not have."
        yield Problem(key, what, f"Write {every}{choices}.")


def _head_problem(run: "Run", names: Any, model: Any) -> Iterator[Problem]:
    """Refuse a LoRA on the output layer, whose weights TRL's trainers use directly."""
    trl = any(base.__module__.startswith("trl.") for base in run.trainer_class.__mro__)
    head = model.get_output_embeddings() if run.writes_text and trl else None
    if head is None or not names or names == "all-linear":
        return
    head_name = next(name for name, module in model.named_modules() if module is head)
    if is_target(head_name, names):
        yield Problem(
            "lora_target_modules",
            f"names {head_name}, whose weights TRL uses directly: its LoRA would not be trained.",
            f"Remove it, or write `lora_modules_to_save: [{head_name}]` to train all of it.",
        )
