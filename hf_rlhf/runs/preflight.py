"""Detect problems before weights load: silent traps of the libraries, limits of the machine.

Each check yields problems, each at a top-level key of the run file. `resolve_run` stops on any of
them, so a run that passes `hf-rlhf check` does not fail later for a cause that is checked here.
"""

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hf_rlhf.config.packages import package_and_path
from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.errors import Problem, first_line
from hf_rlhf.models.ends import end_problems
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.loading import skeleton
from hf_rlhf.models.lora_checks import adapter_problems
from hf_rlhf.rewards.composed import TRL_SUPPLIES, signature
from hf_rlhf.runs.estimate import cycle_in_steps, generation_batch
from hf_rlhf.runs.monitor import monitor_problems
from hf_rlhf.runs.preflight_data import (
    column_problems,
    dropped_problems,
    evaluation_problems,
    length_problems,
    template_problems,
    tokenizer_problems,
    tokenizer_size,
    tool_problems,
)
from hf_rlhf.runs.preflight_launch import (
    launch_problems,
    master_copy_advice,
    master_copy_problems,
)
from hf_rlhf.runs.preflight_rows import rendering_problem, row_notes, value_problems
from hf_rlhf.runs.preflight_settings import settings_problems
from hf_rlhf.runs.preflight_sharding import resume_problems, sharding_advice
from hf_rlhf.runs.reward_validation import hook
from hf_rlhf.runs.run import trains_by_rewards
from hf_rlhf.runs.validation import validation_problems

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

WEIGHTS = ("*.safetensors", "*.bin")
_SDPA = "Install it, or `--attn_implementation sdpa`."


def problems_of(run: "Run", where: Callable[[str], str]) -> list[Problem]:
    """Return all problems that would make `run` fail, or train something else than requested.

    `where` returns the origin of a top-level key.
    """
    # The other checks count with the epochs, and some read the model's configuration, or write
    # prompts with the tools.
    if problems := list(_epochs(run)):
        checks: Sequence[Check] = ()
    elif problems := list(value_problems(run)):
        checks = _MACHINE_CHECKS  # the others read the rows
    elif problems := [*tool_problems(run), *_model(run)]:
        checks = _CHECKS
    else:
        checks = (*_CHECKS, *_MODEL_CHECKS, dropped_problems)
    for check in checks:
        if check is dropped_problems and problems:
            break
        if is_elsewhere() and check in _MACHINE_CHECKS:
            continue
        try:
            problems += check(run)
        except Exception:
            # Many checks render rows with the chat template, which may raise anything.
            if (raises := rendering_problem(run)) is None:
                raise
            problems.append(raises)
    placed = [replace(problem, where=where(problem.where)) for problem in dict.fromkeys(problems)]
    return [*launch_problems(run, where), *placed]


def machine_problems(run: "Run") -> Iterator[Problem]:
    """Yield problems of this machine, which another may not have."""
    for check in _MACHINE_CHECKS:
        yield from check(run)


def advice(run: "Run") -> list[str]:
    """Return notes on settings that the author of `run` probably did not intend."""
    notes = [*run.trainer_class.advice(run), *hook().advice(run)]
    for part in (*run.reward.rewards, *run.reward.gates) if run.reward is not None else ():
        reward_advice = getattr(part.reward, "advice", None)
        if reward_advice is not None and part.weight:
            notes += [f"{part.label!r}: {text}" for text in reward_advice()]
        if (reward_notes := getattr(part.reward, "notes", None)) is not None:
            notes += [f"{part.label!r}: {text}" for text in reward_notes(run)]
    notes += [*_sources(run), *row_notes(run)]
    on_cpu = run.training.device.type == "cpu" and not is_elsewhere()
    if run.training.bf16 and on_cpu:
        notes.append("bf16 makes most CPUs several times slower, not faster: `--bf16 false`")
    return [*notes, *master_copy_advice(run), *sharding_advice(run)]


def _sources(run: "Run") -> Iterator[str]:
    """Yield notes on components that no package offers, and on the record of them."""
    for each in run.components:
        if names := each.get("not_compared"):
            yield (
                f"{', '.join(names)} of {each['label']!r} cannot be compared when the run resumes, "
                "because pickle does not keep it. Leave it out in the class's `__getstate__` if it "
                "does not change the scores"
            )
    code = [each for each in run.components if each.get("package") is None and "target" in each]
    kept = [each["label"] for each in code if each.get("sha256")]
    if kept and run.spec.publish.repo_id is not None:
        yield f"run.json is published with the source of {', '.join(kept)}"


def _base(run: "Run") -> Iterator[Problem]:
    """Check that the base has a Hub id for the card and adapter; the push would be refused."""
    publish, base = run.spec.publish, run.model.model_name_or_path
    local = package_and_path(base) is not None or Path(base).exists()
    if publish.repo_id is not None and publish.base_model is None and local:
        yield Problem(
            "publish",
            f"the base model is {base!r}, which nobody else can load.",
            "Add `base_model: ITS/ID`, its name on the Hub; if it is not there, `push_base: true` "
            "too, and it is pushed there first.",
        )


def _model(run: "Run") -> Iterator[Problem]:
    try:
        model_config(run)
    except (OSError, ValueError, KeyError, ImportError, RecursionError) as error:
        yield Problem(
            "model_name_or_path",
            f"the configuration of {run.model_path!r} does not load: {first_line(error)}",
            "It should be a model that transformers can load, with a config.json.",
        )
        return
    folder = Path(run.model_path)
    if is_elsewhere():
        return  # a plan needs the configuration and the tokenizer
    if folder.is_dir() and not any(path for end in WEIGHTS for path in folder.glob(end)):
        yield Problem(
            "model_name_or_path",
            f"{folder} holds no weights ({', '.join(WEIGHTS)}).",
            "Download the model again, or name the folder that `save_pretrained` wrote.",
        )


def _merge(run: "Run") -> Iterator[Problem]:
    """Check what the merge after training would refuse."""
    if not run.model.use_peft:
        return
    if getattr(model_config(run), "quantization_config", None) is not None:
        yield Problem(
            "model_name_or_path",
            "is quantised, and a LoRA adapter cannot be merged into quantised weights.",
            "Name the unquantised model; `load_in_4bit: true` quantises it for training only.",
        )
    if run.model.lora_target_parameters:
        yield Problem(
            "lora_target_parameters",
            "cannot be merged after training.",
            "Use `lora_target_modules`.",
        )


def _epochs(run: "Run") -> Iterator[Problem]:
    """Check for epochs with which transformers trains nothing, without an error."""
    training = run.training
    if training.max_steps <= 0 and training.num_train_epochs <= 0:
        what = f"is {training.num_train_epochs:g}, so nothing would be trained."
        yield Problem("num_train_epochs", what, "Write a number above 0, or `max_steps`.")


def _batch(run: "Run") -> Iterator[Problem]:
    """Check for fewer prompts than a generation batch, on which TRL silently trains 0 steps."""
    batch = generation_batch(run.training)
    if batch is None:
        return
    prompts = batch // run.training.num_generations
    rows = len(run.dataset["train"])
    if rows < prompts:
        yield Problem(
            "dataset",
            f"{rows} training rows, but one generation batch takes {prompts} prompts "
            f"({batch} completions / {run.training.num_generations} each).",
            "Add rows, or lower the batch (prompts_per_step, per_device_train_batch_size, "
            "gradient_accumulation_steps or generation_batch_size).",
        )


def _rewarded(run: "Run") -> Iterator[Problem]:
    if run.reward is not None and not run.writes_text:
        yield Problem(
            "rewards",
            f"score text, but trainer {run.spec.plugin!r} trains a model for {run.task}.",
            "Remove them.",
        )
    columns = {*run.dataset["train"].column_names}
    for name in sorted(TRL_SUPPLIES & columns):
        if run.reward is not None and run.writes_text:
            yield Problem(
                "dataset",
                f"has a column {name!r}, the name of an argument that every reward has.",
                "Leave it out, or rename it.",
            )
    trained = trains_by_rewards(run.trainer_class, run.training) is not False
    for part in (*run.reward.rewards, *run.reward.gates) if run.reward is not None else ():
        yield from getattr(part.reward, "problems", lambda _: ())(run)
        if trained and "completion" in columns and "completion" in signature(part.reward):
            yield Problem(
                "dataset",
                f"has the column `completion`, which {part.label!r} reads, but no trainer passes a "
                "column of that name to rewards while it trains.",
                "Rename it, such as to `reference`.",
            )
    if not hasattr(run.training, "num_generations"):
        return
    if run.reward is None or all(part.weight == 0 for part in run.reward.rewards):
        yield Problem("rewards", "no reward has a weight other than 0, so nothing is trained.")


def _packages(run: "Run") -> Iterator[Problem]:
    """Check packages that are imported only with the trainer, after the first evaluation."""
    from transformers.integrations import get_reporting_integration_callbacks

    try:
        for callback in get_reporting_integration_callbacks(run.training.report_to):
            callback()
    except (ValueError, ImportError, RuntimeError, AssertionError) as error:
        yield Problem("report_to", first_line(error), "Install it, or write `none`.")
    for key, package in (
        ("use_vllm", "vllm"),
        ("use_liger_kernel", "liger_kernel"),
        ("load_in_4bit", "bitsandbytes"),
        ("load_in_8bit", "bitsandbytes"),
    ):
        asked = getattr(run.training, key, getattr(run.model, key, False))
        if asked and importlib.util.find_spec(package) is None:
            yield Problem(key, f"{package} is not installed.", f"Install it, or `--{key} false`.")
    for key in ("load_in_4bit", "load_in_8bit"):
        if getattr(run.model, key) and not run.model.use_peft:
            yield Problem(key, "quantises weights, which cannot be trained.", "`use_peft: true`.")


def _attention(run: "Run") -> Iterator[Problem]:
    name = run.model.attn_implementation
    if name is None:
        return
    if name == "flash_attention_2" and run.training.device.type == "cpu" and not is_elsewhere():
        yield Problem("attn_implementation", "FlashAttention runs on GPUs, not on a CPU.", _SDPA)
        return
    try:
        skeleton(run, attn_implementation=name)
    except (ValueError, ImportError) as error:
        yield Problem("attn_implementation", f"{name!r} cannot be used: {first_line(error)}", _SDPA)


def _saves(run: "Run") -> Iterator[Problem]:
    """Check for saves inside a generation cycle, which lose its completions (4e-3 in weights)."""
    if run.training.save_strategy == "best" and run.training.eval_strategy == "no":
        yield Problem(
            "save_strategy",
            "is best, but nothing is evaluated during training.",
            "Write `steps`, `epoch` or `no`.",
        )
    cycle = cycle_in_steps(run.training)
    steps = run.training.save_steps
    if run.training.save_strategy != "steps" or cycle == 1:
        return
    if steps < 1 or steps % cycle:
        yield Problem(
            "save_steps",
            f"is {steps:g}, but a generation cycle takes {cycle} optimizer steps, and resuming "
            "inside one is inexact.",
            f"Use a multiple of {cycle}.",
        )


def _folder(run: "Run") -> Iterator[Problem]:
    """Check that the folder, or its nearest existing parent, is writable."""
    existing = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Problem(
            "output_dir",
            f"{existing} cannot be written to.",
            "Choose a writable folder: `--output_dir DIR`.",
        )


Check = Callable[["Run"], Iterable[Problem]]
_MODEL_CHECKS: tuple[Check, ...] = (
    *(tokenizer_size, end_problems, length_problems, _merge, adapter_problems, settings_problems),
    master_copy_problems,
)
_MACHINE_CHECKS: tuple[Check, ...] = (_packages, _attention, _folder)
"""Checks of packages, servers and folders on the training machine."""
_CHECKS: tuple[Check, ...] = (
    column_problems,
    _rewarded,
    _batch,
    evaluation_problems,
    validation_problems,
    lambda run: hook().problems(run),
    monitor_problems,
    tokenizer_problems,
    template_problems,
    *_MACHINE_CHECKS,
    resume_problems,
    _saves,
    _base,
    lambda run: run.trainer_class.preflight(run),
)
