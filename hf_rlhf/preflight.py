"""What can be known to go wrong before weights load: the library's silent traps, and the machine.

Each check returns the problems it sees, each at a top-level key of the run file.
`hf_rlhf.prepare.prepare` stops on any of them, so a run that `hf-rlhf check` passes does not fail
later for a cause that is listed here.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.checkpoints import cycle_in_steps
from hf_rlhf.errors import Problem

if TYPE_CHECKING:
    from hf_rlhf.run import Run

WEIGHTS = ("*.safetensors", "*.bin")
LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")


def problems_of(run: "Run", where: Callable[[str], str]) -> list[Problem]:
    """Return everything that would make `run` fail, or train other than it was asked.

    `where` says where in the run file a top-level key stands.
    """
    found = list(_model(run))
    # The others read the model's configuration.
    checks = () if found else _MODEL_CHECKS
    found += [problem for check in (*_CHECKS, *checks) for problem in check(run)]
    return [replace(problem, where=where(problem.where)) for problem in found]


def _model(run: "Run") -> Iterator[Problem]:
    try:
        model_config(run)
    except (OSError, ValueError, KeyError, ImportError) as error:
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


def _batch(run: "Run") -> Iterator[Problem]:
    """TRL trains 0 steps, without an error, on fewer prompts than one generation batch."""
    batch = getattr(run.training, "generation_batch_size", None)
    if not batch:
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
    if not hasattr(run.training, "num_generations"):
        return
    if run.reward is None or all(part.weight == 0 for part in run.reward.rewards):
        yield Problem("rewards", "no reward has a weight other than 0, so nothing is trained.")


def _loss_type(run: "Run") -> Iterator[Problem]:
    """TRL looks at `loss_type` only in the first loss."""
    loss = getattr(run.training, "loss_type", None)
    if hasattr(run.training, "num_generations") and loss not in LOSS_TYPES:
        yield Problem("loss_type", f"{loss!r} is unknown.", f"Known: {', '.join(LOSS_TYPES)}.")


def _tokenizer(run: "Run") -> Iterator[Problem]:
    where = "model_name_or_path"
    if run.tokenizer.pad_token_id is None:
        yield Problem(
            where,
            "its tokenizer has no pad token, so batches cannot be padded.",
            "Set `tokenizer.pad_token` and save the tokenizer beside the model.",
        )
    if _conversational(run) and not run.tokenizer.chat_template:
        yield Problem(
            where,
            "its tokenizer has no chat template, and the prompts are conversations.",
            "Use an instruction-tuned model, or save a chat_template with the tokenizer.",
        )


def _conversational(run: "Run") -> bool:
    return not isinstance(run.dataset["train"][0].get("prompt"), (str, type(None)))


def prompt_lengths(run: "Run", rows: int | None = None, split: str = "train") -> list[int]:
    """Return the prompt length in tokens of the first `rows` rows of a split (all if None)."""
    data = run.dataset[split]
    prompts = data.select(range(min(rows or len(data), len(data))))["prompt"][:]
    kwargs = getattr(run.training, "chat_template_kwargs", None) or {}
    texts = [
        prompt
        if isinstance(prompt, str)
        else run.tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=False, **kwargs
        )
        for prompt in prompts
    ]
    special = bool(texts) and isinstance(prompts[0], str)
    return [len(ids) for ids in run.tokenizer(texts, add_special_tokens=special)["input_ids"]]


def model_config(run: "Run") -> Any:
    """Return the base model's configuration; only its JSON is read."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(
        run.model_path,
        revision=run.model.model_revision,
        trust_remote_code=getattr(run.training, "trust_remote_code", False),
    )


def _length(run: "Run") -> Iterator[Problem]:
    """GRPO never cuts prompts; past the model's positions the loss is quietly meaningless."""
    if _conversational(run) and not run.tokenizer.chat_template:
        return  # reported by another check
    room = getattr(model_config(run).get_text_config(), "max_position_embeddings", None)
    uses: list[tuple[str, int | None, int]] = [
        ("train", None, getattr(run.training, "max_completion_length", None) or 0)
    ]
    if (spec := run.spec.evaluation) is not None:
        uses.append((spec.split, spec.rows, spec.max_new_tokens or completion_length(run)))
    for split, rows, answer in uses:
        if not room or "prompt" not in getattr(run.dataset.get(split), "column_names", ()):
            continue  # no prompts, or no such split, which another check reports
        lengths = prompt_lengths(run, rows, split)
        longest = max(lengths, default=0)
        if longest + answer > room:
            yield Problem(
                "dataset",
                f"row {lengths.index(longest)} of {split} has a prompt of {longest} tokens; with "
                f"completions of {answer} that is over the model's {room} positions.",
                "Lower the adapter's prompt cap (max_prompt_tokens) or max_completion_length.",
            )
            return


def completion_length(run: "Run") -> int:
    """Return the longest completion, in tokens, that the run trains on or evaluates."""
    return getattr(run.training, "max_completion_length", None) or 256


def _evaluation(run: "Run") -> Iterator[Problem]:
    """An evaluation that is asked for takes place, or the run does not begin."""
    spec = run.spec.evaluation
    if spec is None:
        return
    if run.reward is None:
        yield Problem("evaluation", "has no rewards to measure with.", "Add some, or remove it.")
        return
    split = run.dataset.get(spec.split)
    if split is None or len(split) == 0:
        have = ", ".join(f"{name} ({len(rows)} rows)" for name, rows in run.dataset.items())
        yield Problem(
            "evaluation",
            f"there are no rows in the split {spec.split!r}. The dataset gave: {have}.",
            "Hold some rows out (see `hf-rlhf describe` of the adapter), name another `split`, or "
            "write `evaluation: null`.",
        )
        return
    for part in (*run.reward.rewards, *run.reward.gates):
        if missing := sorted(part.needs() - set(split.column_names)):
            yield Problem(
                "evaluation",
                f"{part.label!r} needs {', '.join(missing)}, which the split {spec.split!r} lacks.",
                f"Its columns: {', '.join(sorted(split.column_names))}.",
            )


def _packages(run: "Run") -> Iterator[Problem]:
    """What is imported only when the trainer is built, after the first evaluation."""
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    for name in run.training.report_to:
        if name not in get_available_reporting_integrations():
            yield Problem(
                "report_to", f"{name} is not installed.", f"`pip install {name}`, or `none`."
            )
    wanted = {"use_vllm": "vllm", "use_liger_kernel": "liger_kernel"}
    for key, package in wanted.items():
        if getattr(run.training, key, False) and importlib.util.find_spec(package) is None:
            yield Problem(
                key, f"the package {package} is not installed.", f"Install it, or `--{key} false`."
            )
    for key in ("load_in_4bit", "load_in_8bit"):
        if getattr(run.model, key) and importlib.util.find_spec("bitsandbytes") is None:
            yield Problem(key, "needs bitsandbytes.", "`pip install bitsandbytes` (and a GPU).")


def _template(run: "Run") -> Iterator[Problem]:
    """A prompt measured with one template and trained with another has another length."""
    given = run.spec.dataset.arguments.get("chat_template_kwargs")
    used = getattr(run.training, "chat_template_kwargs", None)
    if given is not None and given != (used or {}):
        yield Problem(
            "chat_template_kwargs",
            f"is {used}, but the dataset makes its prompts with {given}.",
            "Give both the same.",
        )


def _attention(run: "Run") -> Iterator[Problem]:
    wanted = run.model.attn_implementation
    if wanted == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        yield Problem(
            "attn_implementation",
            "FlashAttention is asked for, but the package flash_attn is not installed.",
            "`pip install hf-rlhf[flash-attn]` (needs a GPU and nvcc), or "
            "`--attn_implementation sdpa`.",
        )


def _deepspeed(run: "Run") -> Iterator[Problem]:
    if (run.training.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true") and (
        importlib.util.find_spec("deepspeed") is None
    ):
        yield Problem(
            "deepspeed",
            "DeepSpeed is asked for, but the package deepspeed is not installed.",
            "`pip install hf-rlhf[deepspeed]`.",
        )


def _saves(run: "Run") -> Iterator[Problem]:
    """A save inside a generation cycle loses the completions under way (measured: 4e-3)."""
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


def _launch(run: "Run") -> Iterator[Problem]:
    """Two of accelerate's CPU paths silently launch something other than was asked for."""
    size, kind = run.spec.expect_world_size, run.spec.expect_distributed
    if size is not None and run.training.world_size != size:
        yield Problem(
            "expect_world_size",
            f"{size} processes were expected, {run.training.world_size} launched.",
            "See `hf-rlhf launch-configs`; on CPU, `--multi_gpu --num_processes N` with "
            "`use_cpu: true` launches N.",
        )
    real = run.training.distributed_state.distributed_type.value
    if kind is not None and real.lower() != kind.lower():
        yield Problem("expect_distributed", f"{kind} was expected, the launch is {real}.")


def free_bytes(folder: Path) -> int:
    """Return the free space, in bytes, where `folder` is or will be."""
    import shutil

    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


Check = Callable[["Run"], Iterator[Problem]]
_MODEL_CHECKS: tuple[Check, ...] = (_length, _merge)
_CHECKS: tuple[Check, ...] = (
    _launch,
    _rewarded,
    _batch,
    _loss_type,
    _evaluation,
    _packages,
    _tokenizer,
    _template,
    _attention,
    _deepspeed,
    _saves,
    _folder,
)
