"""Settings of transformers' and TRL's classes that a run refuses, with reasons.

An accepted setting has the effect that its name promises. Settings in `REFUSED` and
`WITHOUT_EFFECT` would have no effect, or another; numbers out of `BOUNDS` end in a traceback or
train nothing. The tables are facts about the libraries; a plugin's trainer adds `refused_settings`
(`hf_rlhf.contracts.Trainer`). Nothing here imports the training stack.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

from annotated_types import BaseMetadata, Ge, Gt, Le, Lt

from hf_rlhf.config.validation import InvalidValue, Where, validate
from hf_rlhf.contracts import Trainer
from hf_rlhf.errors import Problem

_OWNED = "is decided by the run itself."
_OUT = "Leave it out."
VALIDATION: Mapping[str, tuple[str, str]] = dict.fromkeys(
    (
        *("eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "eval_packing"),
        *("per_device_eval_batch_size", "num_generations_eval"),
        *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    ),
    (
        "is for a trainer that evaluates during training, and this one does not.",
        "The `evaluation` section measures before and after training.",
    ),
)
"""Like `REFUSED`, but accepted by a trainer that `uses_validation_rows`."""

REFUSED: Mapping[str, tuple[str, str]] = {
    "push_to_hub": (_OWNED, "Set `publish.repo_id`: a run is pushed once, whole, after training."),
    "hub_model_id": (_OWNED, "Set `publish.repo_id`."),
    "hub_token": (
        _OWNED,
        "Set the HF_TOKEN environment variable: an argument ends in training_args.bin.",
    ),
    "hub_private_repo": (_OWNED, "Set `publish.private`."),
    "hub_revision": (_OWNED, "Set `publish.revision`."),
    **dict.fromkeys(
        ("hub_strategy", "hub_always_push"),
        (_OWNED, "Remove it: a run is pushed once, whole, after training."),
    ),
    "log_completions_hub_repo": (
        "would push completions beside the run.",
        "Leave it out: `publish` pushes what is to be public.",
    ),
    "resume_from_checkpoint": (
        _OWNED,
        "Remove it: the same command resumes from the newest valid checkpoint, and another "
        "`output_dir` starts from the beginning.",
    ),
    "restore_callback_states_from_checkpoint": (_OWNED, _OUT),
    **dict.fromkeys(
        ("save_only_model", "ignore_data_skip"),
        ("makes a resumed run differ from the original.", _OUT),
    ),
    "enable_jit_checkpoint": (
        "saves on SIGTERM, which the run does itself.",
        "Set `stop_grace`, the seconds until it stops.",
    ),
    "save_on_each_node": (
        "makes several machines write the same files: `output_dir` lies on storage that all share.",
        _OUT,
    ),
    "auto_find_batch_size": (
        "makes the batch depend on the memory that is free, so it is not the one on the card.",
        "Write a smaller `per_device_train_batch_size` and more `gradient_accumulation_steps`.",
    ),
    **dict.fromkeys(
        (
            *("eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
            *("prediction_loss_only", "include_for_metrics", "batch_eval_metrics", "label_names"),
        ),
        ("is for `compute_metrics`, which a run does not have.", _OUT),
    ),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"),
        ("has no effect during training.", _OUT),
    ),
    "generate_during_eval": (
        "logs completions to Weights & Biases or Comet only.",
        "Set `evaluation`: the record has sample completions.",
    ),
    "is_encoder_decoder": ("is for encoder-decoder models.", _OUT),
    **dict.fromkeys(
        ("do_train", "do_eval", "do_predict"),
        ("is for transformers' example scripts.", "Leave it out: a run trains and evaluates."),
    ),
    "use_cache": (
        "has no effect: training never keeps a cache, and sampling always does.",
        _OUT,
    ),
    "length_column_name": ("has no effect: rows have no column of lengths in training.", _OUT),
    "parallelism_config": (
        "is an object, which a run file cannot hold.",
        "Give it to `accelerate launch` (`--use_parallelism_config true`).",
    ),
    "reward_weights": (
        "weighs the reward functions that TRL sees, and it sees one, the composed reward.",
        "Write `weight` at each reward (`--rewards.<label>.weight NUMBER`).",
    ),
    "multi_objective_aggregation": (
        "is for several reward functions, and TRL sees one, the composed reward.",
        _OUT,
    ),
    "chat_template_path": (
        "changes the tokenizer only once the weights are loaded.",
        "Write `chat_template: FILE`, by which rows are checked and measured as well.",
    ),
    **dict.fromkeys(
        ("dataset_text_field", "dataset_kwargs"),
        (
            "has no effect: the dataset adapter gives the columns.",
            "Choose them under `dataset:` (`hf-rlhf describe ADAPTER`).",
        ),
    ),
    "log_multimodal": ("has no effect: rows are text alone.", _OUT),
}
"""Setting -> the problem with it in every run, and the cure."""

_LOSS_TOKENS = "has no effect: this trainer's loss does not count tokens over devices."
_ORDER = "has no effect on the order of rows, which this trainer draws from `seed`."
_SMOOTHING = "has no effect on this trainer's loss."
_NOISE = (
    "adds noise to what the loss compares, so that {} would be noise.",
    "Leave it out: NEFTune is for supervised fine-tuning.",
)

_OWN_LOSS = {
    "label_smoothing_factor": (_SMOOTHING, _OUT),
    "average_tokens_across_devices": (_LOSS_TOKENS, _OUT),
}
_SAMPLES = {
    **_OWN_LOSS,
    "data_seed": (_ORDER, "Set `seed`, or `shuffle_dataset: false`."),
    "train_sampling_strategy": (_ORDER, "Set `seed`, or `shuffle_dataset: false`."),
    "include_num_input_tokens_seen": ("has no effect: TRL counts `num_tokens`.", _OUT),
    "remove_unused_columns": ("removes the columns that rewards read.", _OUT),
    "neftune_noise_alpha": (_NOISE[0].format("the ratio of new and old probabilities"), _NOISE[1]),
}
_COMPARES_WITH_REFERENCE = {
    **_OWN_LOSS,
    "neftune_noise_alpha": (_NOISE[0].format("the ratio of policy and reference"), _NOISE[1]),
}

WITHOUT_EFFECT: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "GRPOTrainer": _SAMPLES,
    "RLOOTrainer": _SAMPLES,
    "DPOTrainer": {
        **_COMPARES_WITH_REFERENCE,
        "label_smoothing_factor": (_SMOOTHING, "Set `label_smoothing`."),
    },
    "KTOTrainer": _COMPARES_WITH_REFERENCE,
    "RewardTrainer": _OWN_LOSS,
}
"""TRL class -> settings that it ignores or that break it, as in `REFUSED`."""

BOUNDS: Mapping[str, Sequence[BaseMetadata]] = {
    name: bounds
    for names, bounds in (
        (
            "per_device_train_batch_size gradient_accumulation_steps num_generations "
            "num_iterations steps_per_generation generation_batch_size max_completion_length "
            "max_new_tokens "
            "max_length pad_to_multiple_of precompute_ref_batch_size dataset_num_proc "
            "save_total_limit ref_model_sync_steps num_completions_to_print lora_r lora_alpha "
            "per_device_eval_batch_size num_generations_eval "
            "torch_empty_cache_steps dataloader_prefetch_factor ddp_bucket_cap_mb ddp_timeout "
            "vllm_max_model_length vllm_tensor_parallel_size",
            (Ge(1),),
        ),
        (
            "learning_rate weight_decay max_grad_norm warmup_steps top_k beta eval_delay "
            "dataloader_num_workers router_aux_loss_coef center_rewards_coefficient "
            "entropy_coef_delta vllm_server_timeout",
            (Ge(0),),
        ),
        (
            "missing_eos_penalty adam_epsilon logging_steps save_steps eval_steps temperature "
            "repetition_penalty epsilon epsilon_high delta neftune_noise_alpha discopop_tau "
            "off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos vespo_k_pos "
            "vespo_lambda_pos vespo_k_neg vespo_lambda_neg vllm_importance_sampling_clip_max "
            "vllm_importance_sampling_clip_min",
            (Gt(0),),
        ),
        ("adam_beta1 adam_beta2 lora_dropout label_smoothing_factor", (Ge(0), Lt(1))),
        ("label_smoothing", (Ge(0), Lt(0.5))),
        ("top_p vllm_gpu_memory_utilization", (Gt(0), Le(1))),
        ("min_p ld_alpha ref_model_mixup_alpha top_entropy_quantile", (Ge(0), Le(1))),
        ("vllm_server_port vllm_group_port", (Ge(1), Le(65535))),
        ("seed data_seed", (Ge(0), Le(2**32 - 1))),
    )
    for name in names.split()
}
"""Setting of a transformers or TRL class -> bounds."""

CHOICES: Mapping[str, Sequence[Any]] = {
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "vllm_importance_sampling_mode": (
        *("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    ),
    "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
}
"""Setting -> its values, if the libraries check it only after loading the weights."""


def refusals(trainer: type[Trainer]) -> dict[str, tuple[str, str]]:
    """Return the settings that a trainer's runs refuse: the problem and the fix of each."""
    refused = {**REFUSED, **({} if trainer.uses_validation_rows else VALIDATION)}
    for base in reversed(trainer.__mro__):
        refused |= WITHOUT_EFFECT.get(base.__name__, {})
    for name, reason in trainer.refused_settings.items():
        if reason is None:
            refused.pop(name, None)
        else:
            refused[name] = reason
    return refused


def refused_problems(
    trainer: type[Trainer], classes: Sequence[type], settings: Mapping[str, Any], where: Where
) -> list[Problem]:
    """Return the problems of refused settings that differ from their defaults."""
    members = {each.name: each for cls in reversed(classes) for each in fields(cls)}
    problems = []
    for name, reason in sorted(refusals(trainer).items()):
        member = members.get(name)
        make = getattr(member, "default_factory", None)
        default = make() if callable(make) else getattr(member, "default", None)
        if name in settings and settings[name] != default:
            problems.append(Problem(where(name), *reason))
    return problems


def value_problems(cls: type, settings: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Yield a dataclass's settings with numbers out of bounds or unknown choices.

    A plugin's own settings are validated by its class.
    """
    members = {each.name: each for each in fields(cls) if _is_upstream(cls, each.name)}
    for name, value in settings.items():
        if name not in members:
            continue
        choices = CHOICES.get(name) or members[name].metadata.get("choices")
        values = value if isinstance(value, list) else [value]
        if numbers := [each for each in values if _is_number(each)]:
            wrong = [what for number in numbers if (what := _out_of_bounds(name, number))]
            yield from (Problem(where(name), what) for what in wrong[:1])
        elif value == [] and name in BOUNDS:
            yield Problem(where(name), "is an empty list.")
        elif choices and value is not None and value not in choices:
            word = getattr(value, "value", value)
            yield Problem(
                where(name), f"{word!r} is unknown.", f"Known: {', '.join(map(str, choices))}."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _out_of_bounds(name: str, value: float) -> str | None:
    """Return the problem with a number, if any."""
    if name == "max_steps" and value != -1 and value < 1:
        return f"should be 1 or more, or -1 to train for `num_train_epochs`, not `{value}`."
    if isinstance(value, float) and not math.isfinite(value):
        return f"should be finite, not `{value}`."
    if bounds := BOUNDS.get(name, ()):
        try:
            validate(value, Annotated[type(value), *bounds])
        except InvalidValue as error:
            return str(error)
    counts = ("warmup_steps", "logging_steps", "save_steps", "eval_steps")
    if name in counts and value > 1 and value % 1:
        return f"should be a whole number, or a share below 1, not `{value}`."
    return None


def _is_upstream(cls: type, name: str) -> bool:
    """Return whether transformers or TRL defines a setting."""
    return any(
        base.__module__.split(".")[0] in ("transformers", "trl")
        and name in vars(base).get("__annotations__", {})
        for base in cls.__mro__
    )
