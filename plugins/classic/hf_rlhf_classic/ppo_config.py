"""The settings of `--plugin ppo` beyond TrainingArguments, and their constraints."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import TrainingArguments

from hf_rlhf.distributed import processes


def _field(default: Any, help: str) -> Any:  # noqa: A002 - the name that argparse has for it
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


_RANGES: tuple[tuple[str, str, Callable[[float], bool]], ...] = (
    (
        "temperature cliprange cliprange_value target_kl kl_target kl_horizon score_clip",
        "above 0",
        lambda value: value > 0,
    ),
    (
        "num_ppo_epochs max_completion_length rollout_micro_batch_size",
        "at least 1",
        lambda value: value >= 1,
    ),
    ("vf_coef kl_coef missing_eos_penalty", "0 or more", lambda value: value >= 0),
    ("gamma", "in (0, 1]", lambda value: 0 < value <= 1),
    ("lam", "in [0, 1]", lambda value: 0 <= value <= 1),
)


@dataclass
class PPOConfig(TrainingArguments):  # type: ignore[misc]
    """A step (`max_steps`, `save_steps`, `logging_steps`) is a single rollout and all its updates.

    `rollout_batch_size` prompts are answered, once each. The completions are then passed over
    `num_ppo_epochs` times in `num_mini_batches` parts, with an optimizer step per part. All batch
    sizes but the two per device are over all processes.
    """

    learning_rate: float = _field(1e-5, "The initial learning rate of AdamW.")
    logging_steps: float = _field(1, "Log each so many steps.")
    remove_unused_columns: bool | None = _field(False, "Rewards may need every column.")
    dataloader_drop_last: bool = _field(True, "A shorter batch would be another update.")
    ddp_find_unused_parameters: bool | None = _field(False, "Every parameter is used.")
    rollout_batch_size: int | None = _field(
        None,
        "Completions of one step, over all processes; per_device_train_batch_size, which is the "
        "share of one device, is derived.",
    )
    num_mini_batches: int = _field(1, "Optimizer steps in one pass over the completions.")
    micro_batch_size: int | None = _field(
        None,
        "Completions passed through the model at once, on a device: less memory, the same result. "
        "The gradients of a mini-batch are accumulated. None: all of them.",
    )
    num_ppo_epochs: int = _field(4, "Passes over the completions of one step.")

    max_completion_length: int = _field(64, "Tokens of a completion, at most.")
    temperature: float = _field(1.0, "Of sampling, and of every log-probability.")
    rollout_micro_batch_size: int | None = _field(
        None, "Prompts answered at once, on a device: less memory. None: all of them."
    )
    chat_template_kwargs: dict[str, Any] | None = _field(None, "For prompts that are messages.")
    ds3_gather_for_generation: bool = _field(
        True, "Under ZeRO-3, gather the weights while generating: faster, needs them to fit."
    )

    value: Literal["policy_adapter", "own_adapter", "own_model"] = _field(
        "policy_adapter",
        "What the value head reads: the policy's own hidden states (one pass gives both), those "
        "of a second adapter on the same base, or of a second model.",
    )
    value_model_path: str | None = _field(
        None, "For value: own_model. None is the model that the policy starts from."
    )
    reference: Literal["initial", "base", "none"] = _field(
        "initial",
        "KL is measured against the policy as training began, the base without any adapter, or "
        "nothing (kl_coef must be 0).",
    )
    reference_model_path: str | None = _field(
        None, "A model of its own as reference; full fine-tuning needs one."
    )
    reward_adapter: str | None = _field(
        None, "A reward adapter on the policy's base, with its score head: folder or Hub id."
    )
    reward_model_path: str | None = _field(None, "A reward model of its own: folder or Hub id.")
    learned_reward_weight: float = _field(
        1.0, "Weight of the score of reward_adapter or reward_model_path in the total."
    )

    kl_coef: float = _field(0.05, "Coefficient of the KL penalty of each token, at the start.")
    kl_target: float | None = _field(
        None, "Adapt kl_coef so that the KL per completion comes near this many nats."
    )
    kl_horizon: float = _field(10_000.0, "Completions in which kl_coef adapts.")
    kl_estimator: Literal["k1", "k2", "k3"] = _field("k1", "Estimator of a token's KL penalty.")
    score_normalisation: Literal["none", "running"] = _field(
        "none", "Less the mean of all scores so far, divided by their standard deviation."
    )
    score_clip: float | None = _field(None, "Keep scores within this, after normalising.")
    missing_eos_penalty: float | None = _field(
        None, "Taken from the score of a completion that does not stop by itself."
    )
    whiten_rewards: bool = _field(False, "Scale the rewards of all tokens to variance 1.")
    whiten_advantages: bool = _field(True, "Shift and scale advantages to mean 0, variance 1.")
    gamma: float = _field(1.0, "Discount of a token's reward.")
    lam: float = _field(0.95, "Lambda of generalised advantage estimation.")

    cliprange: float = _field(0.2, "Clip range of the probability ratio.")
    cliprange_value: float | None = _field(0.2, "Clip range of the value; None does not clip.")
    vf_coef: float = _field(0.1, "Weight of the value loss.")
    entropy_coef: float = _field(0.0, "Weight of the entropy bonus.")
    value_learning_rate: float | None = _field(
        None, "Of the value head, and what only it uses. None is learning_rate."
    )
    target_kl: float | None = _field(
        None,
        "Stop the updates of a step once the policy's KL to its start exceeds this, in nats "
        "per token.",
    )
    kl_warning: float = _field(
        50.0, "Say so when the KL to the reference exceeds this many nats per completion."
    )
    save_value_model: bool = _field(False, "Write value head and adapter to value/ at the end.")

    use_vllm: bool = _field(False, "Generate with vLLM, through TRL's client.")
    vllm_mode: Literal["colocate", "server"] = _field("colocate", "Where vLLM runs.")
    vllm_server_base_url: str | None = _field(None, "In place of host and port.")
    vllm_server_host: str = _field("0.0.0.0", "Host of the vLLM server.")
    vllm_server_port: int = _field(8000, "Port of the vLLM server.")
    vllm_server_timeout: float = _field(240.0, "Seconds to wait for the server.")
    vllm_group_port: int = _field(51216, "Port of the weight update group.")
    vllm_gpu_memory_utilization: float = _field(0.3, "Share of GPU memory, colocated.")
    vllm_tensor_parallel_size: int = _field(1, "GPUs that share one vLLM, colocated.")
    vllm_max_model_length: int | None = _field(None, "Prompt and completion, in tokens.")
    vllm_enable_sleep_mode: bool = _field(False, "Free vLLM's memory during the updates.")

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
        wrong = [
            f"{name} {value} is not {text}"
            for names, text, right in _RANGES
            for name in names.split()
            if (value := getattr(self, name)) is not None and not right(value)
        ]
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
