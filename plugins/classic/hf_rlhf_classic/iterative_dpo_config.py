"""The settings of iterative DPO: TRL's `DPOConfig` with the settings of an iteration."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from hf_rlhf.distributed import processes
from hf_rlhf_classic.dpo import PreferenceConfig
from hf_rlhf_classic.ppo_config import Count, NotNegative, Positive, setting
from hf_rlhf_classic.preference_buffer import most_pairs

_OUT = "Leave it out."
_DRAWN = "has no effect: the buffer draws the pairs, and makes their rows."
REFUSED = {
    "eval_strategy": (
        "is for an evaluation dataset of pairs.",
        "Each iteration's policy is measured on `measured_prompts` held-out prompts.",
    ),
    "num_train_epochs": ("means nothing here.", "Set `iterations` and `steps_per_iteration`."),
    "sync_ref_model": (
        "moves the reference with the steps.",
        "`reference: previous` renews it at each iteration.",
    ),
    **dict.fromkeys(
        ("ref_model_mixup_alpha", "ref_model_sync_steps"), ("is for `sync_ref_model`.", _OUT)
    ),
    "precompute_ref_log_probs": ("is always done here.", _OUT),
    "precompute_ref_batch_size": ("has no effect.", "Set `per_device_train_batch_size`."),
    **dict.fromkeys(
        ("train_sampling_strategy", "data_seed", "dataset_num_proc", "truncation_mode"),
        (_DRAWN, _OUT),
    ),
    "dataloader_persistent_workers": ("does not go with pairs that change.", _OUT),
}
"""Settings of DPOConfig without meaning or effect here, with reason and alternative."""


@dataclass
class IterativeDPOConfig(PreferenceConfig):
    """TRL's `DPOConfig` with iterations. As in DPO, batches are counted in pairs.

    `max_steps` is `iterations * steps_per_iteration`; set either of the last two, or neither. By
    default an iteration has enough steps for a single pass over all pairs of its rollouts.
    """

    iterations: Count = setting(3, "How often to sample, label and train.")
    prompts_per_iteration: Count = setting(256, "Prompts to sample completions for, each time.")
    completions_per_prompt: Annotated[int, Ge(2)] = setting(
        4, "Completions sampled for each of them."
    )
    pairs: Literal["best_worst", "all"] = setting(
        "best_worst", "Which pairs of a prompt's completions to train on."
    )
    margin: NotNegative = setting(0.0, "By how much two rewards must differ to make a pair.")
    buffer: Literal["current", "rolling2", "full"] = setting(
        "current", "Whose pairs to train on: this iteration's, the last two's, all iterations'."
    )
    reference: Literal["initial", "previous"] = setting(
        "initial", "DPO's reference: the initial policy, or the policy before the iteration."
    )
    on_no_pairs: Literal["stop", "reuse"] = setting(
        "stop", "When an iteration gives no pair: stop, or train on the buffer without it."
    )
    steps_per_iteration: int | None = setting(
        None, "Optimizer steps of an iteration; the same for every buffer."
    )
    temperature: Positive = setting(1.0, "Of the completions sampled; above 0.")
    top_p: Annotated[float, Gt(0), Le(1)] = setting(
        1.0, "Share of probability that completions are sampled from."
    )
    max_completion_length: Count = setting(256, "Tokens at which a completion is cut.")
    rollout_batch_size: int = setting(64, "Completions sampled at once by each process.")
    measured_prompts: Annotated[int, Ge(0)] = setting(
        128, "Held-out prompts on which each iteration's policy is measured; 0: none."
    )
    stop_without_gain: bool = setting(
        False,
        "Stop after an iteration whose paired gain on them has an interval with 0 in it.",
    )
    chat_template_kwargs: dict[str, Any] | None = setting(None, "For the chat template.")
    train_sampling_strategy: str = setting(
        "sequential", "Not to be changed: the buffer draws the pairs in a random order."
    )

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ValueError(" ".join(problems))
        self._plan_steps()
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        if self.stop_without_gain and not self.measured_prompts:
            yield "stop_without_gain needs `measured_prompts`, and there are none."
        if self.rollout_batch_size < self.completions_per_prompt:
            yield (
                f"rollout_batch_size {self.rollout_batch_size} does not hold the "
                f"{self.completions_per_prompt} completions of one prompt."
            )

    def _plan_steps(self) -> None:
        """Derive `max_steps` from `steps_per_iteration`, or vice versa."""
        requested: int = self.max_steps
        if requested > 0:
            steps, rest = divmod(requested, self.iterations)
            if rest or self.steps_per_iteration not in (None, steps):
                raise ValueError(
                    f"max_steps {requested} is not iterations {self.iterations} x "
                    f"steps_per_iteration {self.steps_per_iteration or 'of a whole number'}. "
                    "Give one of the two."
                )
            self.steps_per_iteration = steps
        elif self.steps_per_iteration is None:
            most = self.prompts_per_iteration * most_pairs(self.pairs, self.completions_per_prompt)
            self.steps_per_iteration = math.ceil(most / self.pairs_per_step)
        if self.steps_per_iteration < 1:
            raise ValueError(f"steps_per_iteration is {self.steps_per_iteration}, expected 1 up.")
        self.max_steps: int = self.iterations * self.steps_per_iteration

    @property
    def pairs_per_step(self) -> int:
        """Return the pairs of an optimizer step over all processes."""
        each = self.per_device_train_batch_size * self.gradient_accumulation_steps
        return int(each) * processes()
