"""What can be known to go wrong before weights load: the library's silent traps, and the machine.

Each check returns the problems it sees. `hf_rlhf.run.prepare` stops on any of them, so a run that
`hf-rlhf check` passes does not fail later for a cause that is listed here.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_rlhf.checkpoints import cycle_in_steps
from hf_rlhf.errors import Problem

if TYPE_CHECKING:
    from hf_rlhf.run import Run

LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")


def problems_of(run: "Run") -> list[Problem]:
    """Return everything that would make `run` fail, or train other than it was asked."""
    return [problem for check in _CHECKS for problem in check(run)]


def _at(run: "Run", key: str) -> str:
    return f"{run.spec.name} {key}"


def _batch(run: "Run") -> Iterator[Problem]:
    """TRL trains 0 steps, without an error, on fewer prompts than one generation batch."""
    batch = getattr(run.training, "generation_batch_size", None)
    if not batch:
        return
    prompts = batch // run.training.num_generations
    rows = len(run.dataset["train"])
    if rows < prompts:
        yield Problem(
            _at(run, "dataset"),
            f"{rows} training rows, but one generation batch takes {prompts} prompts "
            f"({batch} completions / {run.training.num_generations} each).",
            "Add rows, or lower the batch (prompts_per_step, per_device_train_batch_size, "
            "gradient_accumulation_steps or generation_batch_size).",
        )


def _rewarded(run: "Run") -> Iterator[Problem]:
    if not hasattr(run.training, "num_generations"):
        return
    if run.reward is None or all(part.weight == 0 for part in run.reward.rewards):
        yield Problem(
            _at(run, "rewards"), "no reward has a weight other than 0, so nothing is trained."
        )


def _loss_type(run: "Run") -> Iterator[Problem]:
    """TRL looks at `loss_type` only in the first loss."""
    loss = getattr(run.training, "loss_type", None)
    if hasattr(run.training, "num_generations") and loss not in LOSS_TYPES:
        yield Problem(
            _at(run, "loss_type"), f"{loss!r} is unknown.", f"Known: {', '.join(LOSS_TYPES)}."
        )


def _tokenizer(run: "Run") -> Iterator[Problem]:
    where = _at(run, "model_name_or_path")
    if run.tokenizer.pad_token_id is None:
        yield Problem(
            where,
            "its tokenizer has no pad token, so batches cannot be padded.",
            "Set `tokenizer.pad_token` and save the tokenizer beside the model.",
        )
    prompt = run.dataset["train"][0].get("prompt")
    if not isinstance(prompt, (str, type(None))) and not run.tokenizer.chat_template:
        yield Problem(
            where,
            "its tokenizer has no chat template, and the prompts are conversations.",
            "Use an instruction-tuned model, or save a chat_template with the tokenizer.",
        )


def prompt_lengths(run: "Run", rows: int | None = None) -> list[int]:
    """Return the prompt length in tokens of the first `rows` training rows (all if None)."""
    split = run.dataset["train"]
    prompts = split.select(range(min(rows or len(split), len(split))))["prompt"][:]
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
    if not run.tokenizer.chat_template or "prompt" not in run.dataset["train"].column_names:
        return  # reported by another check, or not a prompt dataset
    room = getattr(model_config(run), "max_position_embeddings", None)
    answer = getattr(run.training, "max_completion_length", None) or 0
    if not room:
        return
    lengths = prompt_lengths(run)
    longest = max(lengths)
    if longest + answer > room:
        yield Problem(
            _at(run, "dataset"),
            f"row {lengths.index(longest)} has a prompt of {longest} tokens; with "
            f"max_completion_length {answer} that is over the model's {room} positions.",
            "Lower the adapter's prompt cap (max_prompt_tokens) or max_completion_length.",
        )


def _template(run: "Run") -> Iterator[Problem]:
    """A prompt measured with one template and trained with another has another length."""
    given = run.spec.dataset.arguments.get("chat_template_kwargs")
    used = getattr(run.training, "chat_template_kwargs", None)
    if given is not None and given != (used or {}):
        yield Problem(
            _at(run, "chat_template_kwargs"),
            f"is {used}, but the dataset makes its prompts with {given}.",
            "Give both the same.",
        )


def _attention(run: "Run") -> Iterator[Problem]:
    wanted = run.model.attn_implementation
    if wanted == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        yield Problem(
            _at(run, "attn_implementation"),
            "FlashAttention is asked for, but the package flash_attn is not installed.",
            "`pip install hf-rlhf[flash-attn]` (needs a GPU and nvcc), or "
            "`--attn_implementation sdpa`.",
        )


def _deepspeed(run: "Run") -> Iterator[Problem]:
    if (run.training.deepspeed or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true") and (
        importlib.util.find_spec("deepspeed") is None
    ):
        yield Problem(
            _at(run, "deepspeed"),
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
            _at(run, "save_steps"),
            f"is {steps:g}, but a generation cycle takes {cycle} optimizer steps, and resuming "
            "inside one is inexact.",
            f"Use a multiple of {cycle}.",
        )


def _folder(run: "Run") -> Iterator[Problem]:
    """The folder that will be made is as writable as the nearest one that exists."""
    existing = next(path for path in (run.folder, *run.folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Problem(
            _at(run, "output_dir"),
            f"{existing} cannot be written to.",
            "Choose a folder that can: `--output_dir DIR`.",
        )


def _launch(run: "Run") -> Iterator[Problem]:
    """Two of accelerate's CPU paths silently launch something other than was asked for."""
    size, kind = run.spec.expect_world_size, run.spec.expect_distributed
    if size is not None and run.training.world_size != size:
        yield Problem(
            _at(run, "expect_world_size"),
            f"{size} processes were expected, {run.training.world_size} launched.",
            "See `hf-rlhf launch-configs`; on CPU, `--multi_gpu --num_processes N` with "
            "`use_cpu: true` launches N.",
        )
    real = run.training.distributed_state.distributed_type.value
    if kind is not None and real.lower() != kind.lower():
        yield Problem(_at(run, "expect_distributed"), f"{kind} was expected, the launch is {real}.")


def free_bytes(folder: Path) -> int:
    """Return the free space, in bytes, where `folder` is or will be."""
    import shutil

    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    return shutil.disk_usage(existing).free


_CHECKS: tuple[Callable[["Run"], Iterator[Problem]], ...] = (
    _launch,
    _rewarded,
    _batch,
    _loss_type,
    _tokenizer,
    _length,
    _template,
    _attention,
    _deepspeed,
    _saves,
    _folder,
)
