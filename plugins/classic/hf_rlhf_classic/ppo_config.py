"""The settings of `--plugin ppo` beyond TrainingArguments, and their constraints."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from transformers import TrainingArguments

from hf_rlhf.distributed import processes


def setting(default: Any, help: str) -> Any:  # noqa: A002 - the name that argparse has for it
    """Return a field of a `Config` with its description."""
    return field(default=default, metadata={"help": help})


_OUT = "Leave it out."
_STEP = "has no effect: a step of PPO is its own, not transformers'."
REFUSED = {
    "gradient_accumulation_steps": (
        "is not used here.",
        "Set `micro_batch_size`, the completions that pass at once: the gradients of a mini-batch "
        "are accumulated.",
    ),
    "label_smoothing_factor": ("has no effect on PPO's loss.", _OUT),
    "per_device_eval_batch_size": ("has no effect.", "Set `evaluation.batch_size`."),
    **dict.fromkeys(
        (
            *("average_tokens_across_devices", "include_num_input_tokens_seen"),
            "torch_empty_cache_steps",
        ),
        (_STEP, _OUT),
    ),
    "neftune_noise_alpha": (
        "adds noise to what the loss compares, so that the ratio of new and old probabilities "
        "would be noise.",
        "Leave it out: NEFTune is for supervised fine-tuning.",
    ),
    "remove_unused_columns": ("removes the columns that prompts and rewards are in.", _OUT),
    "dataloader_drop_last": (
        "is always done: a shorter batch would be another update than was asked for.",
        _OUT,
    ),
    "ddp_find_unused_parameters": (
        "does not go with the value head, which is used outside the wrapped forward.",
        _OUT,
    ),
}
"""Settings of TrainingArguments that PPO ignores or that would spoil it, with alternatives."""


Count = Annotated[int, Ge(1)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]


@dataclass
class PPOConfig(TrainingArguments):  # type: ignore[misc]
    """A step (`max_steps`, `save_steps`, `logging_steps`) is a single rollout and all its updates.

    `rollout_batch_size` prompts are answered, once each. The completions are then passed over
    `num_ppo_epochs` times in `num_mini_batches` parts, with an optimizer step per part. All batch
    sizes but the two per device are over all processes.
    """

    learning_rate: float = setting(1e-5, "The initial learning rate of AdamW.")
    logging_steps: float = setting(1, "Log each so many steps.")
    remove_unused_columns: bool | None = setting(False, "Rewards may need every column.")
    dataloader_drop_last: bool = setting(True, "A shorter batch would be another update.")
    ddp_find_unused_parameters: bool | None = setting(False, "Every parameter is used.")
    rollout_batch_size: int | None = setting(
        None,
        "Completions of one step, over all processes; per_device_train_batch_size, which is the "
        "share of one device, is derived.",
    )
    num_mini_batches: int = setting(1, "Optimizer steps in one pass over the completions.")
    micro_batch_size: int | None = setting(
        None,
        "Completions passed through the model at once, on a device: less memory, the same result. "
        "The gradients of a mini-batch are accumulated. None: all of them.",
    )
    num_ppo_epochs: Count = setting(4, "Passes over the completions of one step.")

    max_completion_length: Count = setting(64, "Tokens of a completion, at most.")
    temperature: Positive = setting(1.0, "Of sampling, and of every log-probability.")
    rollout_micro_batch_size: Count | None = setting(
        None, "Prompts answered at once, on a device: less memory. None: all of them."
    )
    chat_template_kwargs: dict[str, Any] | None = setting(None, "For prompts that are messages.")
    ds3_gather_for_generation: bool = setting(
        True, "Under ZeRO-3, gather the weights while generating: faster, needs them to fit."
    )

    value: Literal["policy_adapter", "own_adapter", "own_model"] = setting(
        "policy_adapter",
        "What the value head reads: the policy's own hidden states (one pass gives both), those "
        "of a second adapter on the same base, or of a second copy of the policy's model.",
    )
    reference: Literal["initial", "base", "none"] = setting(
        "initial",
        "KL is measured against the policy as training began, the base without any adapter, or "
        "nothing (kl_coef must be 0).",
    )
    reference_model_path: str | None = setting(
        None, "A model of its own as reference; full fine-tuning needs one."
    )
    reward_adapter: str | None = setting(
        None, "A reward adapter on the policy's base, with its score head: folder or Hub id."
    )
    reward_model_path: str | None = setting(None, "A reward model of its own: folder or Hub id.")
    learned_reward_weight: float = setting(
        1.0, "Weight of the score of reward_adapter or reward_model_path in the total."
    )

    kl_coef: NotNegative = setting(
        0.05, "Coefficient of the KL penalty of each token, at the start."
    )
    kl_target: Positive | None = setting(
        None, "Adapt kl_coef so that the KL per completion comes near this many nats."
    )
    kl_horizon: Positive = setting(10_000.0, "Completions in which kl_coef adapts.")
    kl_estimator: Literal["k1", "k2", "k3"] = setting("k1", "Estimator of a token's KL penalty.")
    score_normalisation: Literal["none", "running"] = setting(
        "none", "Less the mean of all scores so far, divided by their standard deviation."
    )
    score_clip: Positive | None = setting(None, "Keep scores within this, after normalising.")
    missing_eos_penalty: NotNegative | None = setting(
        None, "Taken from the score of a completion that does not stop by itself."
    )
    whiten_advantages: bool = setting(True, "Shift and scale advantages to mean 0, variance 1.")
    gamma: Annotated[float, Gt(0), Le(1)] = setting(1.0, "Discount of a token's reward.")
    lam: Annotated[float, Ge(0), Le(1)] = setting(
        0.95, "Lambda of generalised advantage estimation."
    )

    cliprange: Positive = setting(0.2, "Clip range of the probability ratio.")
    cliprange_value: Positive | None = setting(0.2, "Clip range of the value; None does not clip.")
    vf_coef: NotNegative = setting(0.1, "Weight of the value loss.")
    entropy_coef: float = setting(0.0, "Weight of the entropy bonus.")
    value_learning_rate: float | None = setting(
        None, "Of the value head, and what only it uses. None is learning_rate."
    )
    target_kl: Positive | None = setting(
        None,
        "Stop the updates of a step once the policy's KL to its start exceeds this, in nats "
        "per token.",
    )
    kl_warning: float = setting(
        50.0, "Say so when the KL to the reference exceeds this many nats per completion."
    )

    def __post_init__(self) -> None:
        if self.rollout_batch_size is not None:
            if self.rollout_batch_size % processes():
                raise ValueError(
                    f"rollout_batch_size {self.rollout_batch_size} does not divide into "
                    f"{processes()} processes. Change one."
                )
            share = self.rollout_batch_size // processes()
            if self.per_device_train_batch_size not in (8, share):
                raise ValueError(
                    f"per_device_train_batch_size {self.per_device_train_batch_size} is not the "
                    f"{share} that rollout_batch_size {self.rollout_batch_size} makes on "
                    f"{processes()} processes. Give one."
                )
            self.per_device_train_batch_size: int = share
        self._check_batches()
        self._check_numbers()
        super().__post_init__()

    def _check_batches(self) -> None:
        share = self.per_device_train_batch_size
        if self.num_mini_batches < 1 or share % self.num_mini_batches:
            raise ValueError(
                f"num_mini_batches {self.num_mini_batches} does not divide the {share} completions "
                "of one device. Change it, or rollout_batch_size."
            )
        mini, micro = share // self.num_mini_batches, self.micro_batch_size
        if micro is not None and (micro < 1 or mini % micro):
            raise ValueError(
                f"micro_batch_size {micro} does not divide the {mini} completions of one "
                "mini-batch on a device. Change one."
            )

    def _check_numbers(self) -> None:
        wrong = []
        if self.kl_target is not None and self.kl_coef == 0:
            wrong.append("kl_target adapts kl_coef by a factor, which leaves 0 at 0")
        # A step changes it by at most 0.2 * completions / horizon; 1 would be all of it.
        completions = self.per_device_train_batch_size * processes()
        if self.kl_target is not None and 0.2 * completions >= self.kl_horizon:
            wrong.append(
                f"kl_horizon {self.kl_horizon:g} is short for steps of {completions} completions: "
                "one could take kl_coef to 0 or below; give several times as many"
            )
        if self.reference == "none" and (self.kl_coef or self.reference_model_path):
            wrong.append("reference none needs kl_coef 0 and no reference_model_path")
        if self.fp16:
            wrong.append("fp16 loses small ratios: use bf16, or neither")
        if wrong:
            raise ValueError("; ".join(wrong) + ".")
