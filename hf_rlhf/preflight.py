"""What can be known to go wrong before weights load: the library's silent traps, and the machine.

Each check returns the problems it sees, each at a top-level key of the run file.
`hf_rlhf.prepare.prepare` stops on any of them, so a run that `hf-rlhf check` passes does not fail
later for a cause that is listed here.
"""

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.bounded import WHOLE_NAME, pattern_problem
from hf_rlhf.data_preflight import (
    column_problems,
    evaluation_problems,
    length_problems,
    template_problems,
    tokenizer_problems,
)
from hf_rlhf.data_preflight import completion_length as completion_length
from hf_rlhf.data_preflight import model_config as model_config
from hf_rlhf.data_preflight import prompt_lengths as prompt_lengths
from hf_rlhf.errors import Problem
from hf_rlhf.policy import adapter_problems, lora_config, skeleton
from hf_rlhf.processes import distributed_type, is_planned, launch_problems, processes
from hf_rlhf.run import PACKAGE_SCHEME
from hf_rlhf.vllm_preflight import vllm_problems

if TYPE_CHECKING:
    from hf_rlhf.run import Run

WEIGHTS = ("*.safetensors", "*.bin")
LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")


def problems_of(run: "Run", where: Callable[[str], str]) -> list[Problem]:
    """Return everything that would make `run` fail, or train other than it was asked.

    `where` says where in the run file a top-level key stands.
    """
    if wrong := list(_numbers(run)):  # the others count with them
        return [replace(problem, where=where(problem.where)) for problem in wrong]
    found = list(_model(run))
    # The others read the model's configuration.
    checks = () if found else _MODEL_CHECKS
    found += [problem for check in (*_CHECKS, *checks) for problem in check(run)]
    placed = [replace(problem, where=where(problem.where)) for problem in found]
    return [*launch_problems(run, where), *placed]


def advice(run: "Run") -> list[str]:
    """Return what `run` may do but its author has hardly meant."""
    own = getattr(run.trainer_class, "advice", None)
    found = list(own(run)) if own is not None else []
    if run.training.bf16 and run.training.device.type == "cpu":
        found.append("bf16 makes most CPUs several times slower, not faster: `--bf16 false`")
    return found


def _base(run: "Run") -> Iterator[Problem]:
    """A card and an adapter name their base: known before training, refused when pushed."""
    publish, base = run.spec.publish, run.model.model_name_or_path
    local = base.startswith(PACKAGE_SCHEME) or Path(base).exists()
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
            f"the configuration of {run.model_path!r} does not load: {str(error).splitlines()[0]}",
            "It should be a model that transformers can load, with a config.json.",
        )
        return
    folder = Path(run.model_path)
    if folder.is_dir() and not any(path for end in WEIGHTS for path in folder.glob(end)):
        yield Problem(
            "model_name_or_path",
            f"{folder} holds no weights ({', '.join(WEIGHTS)}).",
            "Download the model again, or name the folder that `save_pretrained` wrote.",
        )


def _merge(run: "Run") -> Iterator[Problem]:
    """What the merge after training would refuse."""
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


_LEAST: Mapping[str, float] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
}


def _numbers(run: "Run") -> Iterator[Problem]:
    """What transformers takes without a word, and fails by or trains nothing by."""
    training = run.training
    for key, least in _LEAST.items():
        value = getattr(training, key, None)
        if value is not None and value < least:
            yield Problem(key, f"is {value:g}.", f"It should be {least:g} or more.")
    if training.max_steps <= 0 and training.num_train_epochs <= 0:
        what = f"is {training.num_train_epochs:g}, so nothing would be trained."
        yield Problem("num_train_epochs", what, "Write a number above 0, or `max_steps`.")


def _targets(run: "Run") -> Iterator[Problem]:
    """peft stops, with weights loaded, where no module is there, and else says nothing."""
    if run.adapter is not None:
        return  # it has its own, and may be damaged, which is told elsewhere
    targets = getattr(lora_config(run), "target_modules", None)
    if not targets or targets == "all-linear":
        return
    try:
        modules = [name for name, _ in skeleton(run).named_modules() if name]
    except ValueError:
        return  # a kind of model that only its trainer can build
    if isinstance(targets, str) and (problem := pattern_problem([(WHOLE_NAME, targets)], modules)):
        yield Problem("lora_target_modules", f"{targets!r} {problem}.", "Write names of modules.")
    elif missing := _missing(targets, modules):
        ends = sorted({name.rpartition(".")[2] for name in modules})
        yield Problem(
            "lora_target_modules",
            f"names {', '.join(missing)}, which the model does not have.",
            f"Write `[all-linear]`, or some of: {', '.join(e for e in ends if not e.isdigit())}.",
        )


def _missing(targets: str | Collection[str], modules: Sequence[str]) -> list[str]:
    """Return which targets are no module. To peft text is a pattern, items are ends of names."""
    if isinstance(targets, str):
        return [] if any(map(re.compile(targets).fullmatch, modules)) else [targets]
    ends = tuple(f".{module}" for module in modules)
    return [one for one in sorted(targets) if not any(end.endswith(f".{one}") for end in ends)]


def _batch(run: "Run") -> Iterator[Problem]:
    """TRL trains 0 steps, without an error, on fewer prompts than one generation batch."""
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


def generation_batch(training: Any) -> int | None:
    """Return how many completions all processes generate at a time; None for other trainers."""
    batch = getattr(training, "generation_batch_size", None)
    # TRL counts the processes that it sees; a dry run plans for others.
    return batch * processes() // training.world_size if batch else None


def _rewarded(run: "Run") -> Iterator[Problem]:
    if run.reward is not None and run.task != "text-generation":
        yield Problem(
            "rewards",
            f"score text, and trainer {run.spec.plugin!r} makes a model of {run.task}.",
            "Remove them.",
        )
    if not hasattr(run.training, "num_generations"):
        return
    if run.reward is None or all(part.weight == 0 for part in run.reward.rewards):
        yield Problem("rewards", "no reward has a weight other than 0, so nothing is trained.")


def _loss_type(run: "Run") -> Iterator[Problem]:
    """TRL looks at `loss_type` only in the first loss."""
    loss = getattr(run.training, "loss_type", None)
    if hasattr(run.training, "num_generations") and loss not in LOSS_TYPES:
        yield Problem("loss_type", f"{loss!r} is unknown.", f"Known: {', '.join(LOSS_TYPES)}.")


def _trainers_own(run: "Run") -> Iterator[Problem]:
    own = getattr(run.trainer_class, "preflight", None)
    yield from own(run) if own is not None else ()


def _packages(run: "Run") -> Iterator[Problem]:
    """What is imported only when the trainer is built, after the first evaluation."""
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    for name in run.training.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            close = get_close_matches(name, INTEGRATION_TO_CALLBACK, n=1)
            hint = f"Did you mean `{close[0]}`? " if close else ""
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            yield Problem("report_to", f"{name!r} is no tracker.", f"{hint}Known: {known}.")
        elif name not in get_available_reporting_integrations():
            yield Problem(
                "report_to", f"{name} is not installed.", f"`pip install {name}`, or `none`."
            )
    if run.training.use_liger_kernel and importlib.util.find_spec("liger_kernel") is None:
        yield Problem(
            "use_liger_kernel",
            "the package liger_kernel is not installed.",
            "Install it, or `--use_liger_kernel false`.",
        )
    for key in ("load_in_4bit", "load_in_8bit"):
        if getattr(run.model, key) and importlib.util.find_spec("bitsandbytes") is None:
            yield Problem(key, "needs bitsandbytes.", "`pip install bitsandbytes` (and a GPU).")


def _attention(run: "Run") -> Iterator[Problem]:
    if run.model.attn_implementation != "flash_attention_2":
        return
    where, instead = "attn_implementation", "`--attn_implementation sdpa`."
    if importlib.util.find_spec("flash_attn") is None:
        yield Problem(
            where,
            "FlashAttention is asked for, but the package flash_attn is not installed.",
            f"`pip install hf-rlhf[flash-attn]` (needs a GPU and nvcc), or {instead}",
        )
    elif run.training.device.type == "cpu":
        yield Problem(where, "FlashAttention runs on GPUs, and this run is on the CPU.", instead)


def _deepspeed(run: "Run") -> Iterator[Problem]:
    if not (run.training.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"):
        return
    if importlib.util.find_spec("deepspeed") is None:
        yield Problem(
            "deepspeed",
            "DeepSpeed is asked for, but the package deepspeed is not installed.",
            "`pip install hf-rlhf[deepspeed]`.",
        )
    tools = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    if tools and run.training.device.type == "cpu":
        yield Problem(
            "deepspeed",
            f"on the CPU DeepSpeed compiles its communication, and {' and '.join(tools)} cannot be "
            "found.",
            "Install what is missing, and activate the virtual environment: ninja is in it.",
        )


def _resumes(run: "Run") -> Iterator[Problem]:
    """A sharded optimizer is for the launch that wrote it; elsewhere transformers begins it anew.

    It says nothing of that (`Trainer._load_optimizer_and_scheduler`), and DeepSpeed stops only
    when the weights have been loaded.
    """
    from hf_rlhf.checkpoints import valid_checkpoints

    found = valid_checkpoints(Path(run.training.output_dir))
    if not found or is_planned():
        return
    shards = len(list(found[-1].glob("global_step*/*optim_states.pt")))
    sharded = distributed_type(run.training) == "DEEPSPEED"
    wrote = f"{shards} processes under DeepSpeed" if shards else "a run without DeepSpeed"
    if sharded != bool(shards) or (shards and shards != run.training.world_size):
        yield Problem(
            "output_dir",
            f"{found[-1]} was written by {wrote}; this launch could not resume its optimizer.",
            "Launch as then, or choose another `output_dir`.",
        )


def _saves(run: "Run") -> Iterator[Problem]:
    """A save inside a generation cycle loses the completions under way (measured: 4e-3)."""
    for key in ("save_only_model", "ignore_data_skip"):
        if getattr(run.training, key):
            yield Problem(
                key, "makes of a run that is resumed another one than it was.", "Leave it out."
            )
    from hf_rlhf.checkpoints import cycle_in_steps

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
    """The folder that will be made is as writable as the nearest one that exists."""
    existing = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Problem(
            "output_dir",
            f"{existing} cannot be written to.",
            "Choose a folder that can: `--output_dir DIR`.",
        )


Check = Callable[["Run"], Iterator[Problem]]
_MODEL_CHECKS: tuple[Check, ...] = (length_problems, _merge, adapter_problems, _targets)
_CHECKS: tuple[Check, ...] = (
    column_problems,
    _rewarded,
    _batch,
    _loss_type,
    evaluation_problems,
    _packages,
    vllm_problems,
    tokenizer_problems,
    template_problems,
    _attention,
    _deepspeed,
    _resumes,
    _saves,
    _base,
    _folder,
    _trainers_own,
)
