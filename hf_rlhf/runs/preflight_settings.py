"""Try settings that the libraries read only after the weights, on weights without memory.

The optimizer and the schedule are built by transformers' own code, the LoRA by peft's.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hf_rlhf.distributed import is_elsewhere
from hf_rlhf.errors import Problem, first_line
from hf_rlhf.models.loading import skeleton
from hf_rlhf.models.lora_checks import lora_problems

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

GRPO_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
INITS = (True, "gaussian", "orthogonal")
"""Values of `init_lora_weights` that do not change the base."""
_LOADING = {
    "revision": "model_revision",
    **{name: name for name in ("dtype", "attn_implementation", "trust_remote_code")},
}
"""Argument of `from_pretrained` -> its setting in a run file."""
_SAMPLING = {
    **dict.fromkeys(("max_new_tokens", "max_length"), "max_completion_length"),
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    "cache_implementation": "cache_implementation",
    **dict.fromkeys(("num_return_sequences", "n"), "num_generations"),
}
"""Key of `generation_kwargs` -> its setting in a run file."""


def settings_problems(run: "Run") -> Iterator[Problem]:
    """Yield the problems of the settings, each at a top-level key of the run file."""
    # A revision in there would be that of the weights, and not of tokenizer and evaluation.
    yield from _own_settings(run, "model_init_kwargs", _LOADING)
    for check in _CHECKS:
        yield from check(run)


def _own_settings(run: "Run", key: str, settings: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the keys in the mapping `key` that are settings of their own."""
    arguments = getattr(run.training, key, None) or {}
    for name in sorted(settings.keys() & arguments.keys()):
        what = f"has {name}, which is a separate setting."
        yield Problem(key, what, f"Write `{settings[name]}: {arguments[name]}`.")


def _old_names(run: "Run") -> Iterator[Problem]:
    """Check for old names, which transformers silently ignores beside the new name."""
    settings = run.spec.settings
    for name in ("checkpointing", "checkpointing_kwargs"):
        old, new = f"gradient_{name}", f"activation_{name}"
        if None not in (settings.get(old), settings.get(new)) and settings[old] != settings[new]:
            yield Problem(
                old,
                f"has no effect: it is the old name of `{new}`, which is also set.",
                f"Write only `{new}: {str(settings[old]).lower()}`.",
            )


def _loss_type(run: "Run") -> Iterator[Problem]:
    """Check `loss_type`, which TRL reads only in the first loss."""
    from trl import GRPOConfig

    loss = getattr(run.training, "loss_type", None)
    if isinstance(run.training, GRPOConfig) and loss not in GRPO_LOSSES:
        yield Problem("loss_type", f"{loss!r} is unknown.", f"Known: {', '.join(GRPO_LOSSES)}.")


def _sampling(run: "Run") -> Iterator[Problem]:
    training = run.training
    extra = getattr(training, "generation_kwargs", None) or {}
    yield from _own_settings(run, "generation_kwargs", _SAMPLING)
    if getattr(training, "use_vllm", False) or not hasattr(training, "cache_implementation"):
        return
    from transformers import GenerationConfig

    for name in sorted(set(extra) - vars(GenerationConfig()).keys()):
        yield Problem("generation_kwargs", f"has {name}, which `generate` does not accept.")
    for key, kwargs in (
        ("cache_implementation", {"cache_implementation": training.cache_implementation}),
        ("generation_kwargs", extra),
    ):
        try:
            GenerationConfig(do_sample=True, **kwargs)
        except (ValueError, TypeError) as error:
            yield Problem(key, f"is refused by transformers: {error}")


def _loading(run: "Run") -> Iterator[Problem]:
    """Check for settings of the data loader that silently change the batch."""
    config = run.training.accelerator_config
    if config.split_batches:
        yield Problem(
            "accelerator_config",
            "has split_batches: `per_device_train_batch_size` would be the batch of all devices.",
            "Leave it out.",
        )
    if "num_steps" in (config.gradient_accumulation_kwargs or {}):
        yield Problem(
            "accelerator_config",
            "has num_steps, which silently changes the accumulation.",
            "Write `gradient_accumulation_steps`.",
        )


def _optimizer(run: "Run") -> Iterator[Problem]:
    import torch

    training = run.training
    if training.deepspeed:
        return  # its own configuration may name another
    try:
        model = skeleton(run) if training.optim_target_modules else torch.nn.Linear(1, 1)
        build_optimizer(model, training)
    except Exception as error:  # noqa: BLE001 - optimizers of any package raise what they like
        if is_elsewhere() and isinstance(error, ImportError):
            return  # its package may be installed there
        key = "optim_args" if training.optim_args else "optim"
        name = getattr(training.optim, "value", training.optim)
        what = f"{name} cannot be built: {first_line(error)}"
        yield Problem(key, what, "Install what it needs, or choose another (`NAME=VALUE,...`).")


def build_optimizer(model: Any, training: Any) -> Any:
    """Return the optimizer as transformers builds it, None from a factory; raises its errors."""
    from transformers import Trainer
    from transformers.trainer_optimizer import is_optimizer_factory

    cls, arguments = Trainer.get_optimizer_cls_and_kwargs(training, model)
    targets = [arguments.pop(key, None) for key in ("params", "model", "optimizer_dict")]
    if is_optimizer_factory(cls):
        return None
    trained = [each for each in model.parameters() if each.requires_grad]
    return cls(next((each for each in targets if each is not None), trained), **arguments)


def _schedule(run: "Run") -> Iterator[Problem]:
    """Take the first steps of the schedule."""
    import torch
    from transformers import get_scheduler

    training = run.training
    if training.deepspeed:
        return
    key = "lr_scheduler_kwargs" if training.lr_scheduler_kwargs else "lr_scheduler_type"
    # With the run's own rate: some schedules end at a rate that has to be lower.
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=training.learning_rate or 1.0)
    steps = training.max_steps if training.max_steps > 0 else 100
    try:
        schedule = get_scheduler(
            training.lr_scheduler_type,
            optimizer,
            num_warmup_steps=training.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=training.lr_scheduler_kwargs,
        )
        for _ in range(min(steps, 100)):
            optimizer.step()
            schedule.step()
    except (TypeError, ValueError, ArithmeticError) as error:
        name = getattr(training.lr_scheduler_type, "value", training.lr_scheduler_type)
        yield Problem(key, f"{name} cannot be built: {first_line(error)}")


def _lora_start(run: "Run") -> Iterator[Problem]:
    key, start = "init_lora_weights", run.spec.init_lora_weights
    if start is not True and (run.adapter is not None or not run.model.use_peft):
        yield Problem(key, "has no effect: the run trains no new LoRA.", "Leave it out.")
    elif start not in INITS:
        yield Problem(
            key,
            f"{start!r} is not supported. PiSSA, OLoRA, CorDA, LoftQ and MiCA move a part of the "
            "base into the adapter: with the adapter off it would no longer be the reference, and "
            "the adapter would not fit the base that it names. EVA needs a pass over the data.",
            f"Known: {', '.join(map(str, INITS)).lower()}.",
        )


Check = Callable[["Run"], Iterator[Problem]]
_CHECKS: tuple[Check, ...] = (
    *(_old_names, _loss_type, _sampling, _loading),
    *(_optimizer, _schedule, _lora_start, lora_problems),
)
