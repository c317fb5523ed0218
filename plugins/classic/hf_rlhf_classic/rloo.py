"""REINFORCE leave-one-out under a composed reward, with TRL's public API only."""

from dataclasses import dataclass

from trl import RLOOConfig, RLOOTrainer

from hf_rlhf import Method
from hf_rlhf.distributed import PromptsPerStep
from hf_rlhf_classic.grpo import GroupSampling
from hf_rlhf_classic.shares_prompt import SharesPromptConfig


@dataclass
class LeaveOneOutConfig(SharesPromptConfig, PromptsPerStep, RLOOConfig):  # type: ignore[misc]
    """TRL's `RLOOConfig`, with the global batch in prompts where `prompts_per_step` is set."""


class LeaveOneOutTrainer(GroupSampling, RLOOTrainer):  # type: ignore[misc]
    """RLOO (Ahmadian et al. 2024) under the run's composed reward: `--plugin rloo`.

    The baseline of a completion is the mean reward of the other completions of its prompt. KL to
    the starting weights is subtracted from the reward, times `beta`.
    """

    Config = LeaveOneOutConfig
    default_run = "tiny"
    method = Method(
        "RLOO",
        tags=("trl", "rloo"),
        citations=("Ahmadian et al. 2024, Back to Basics, arXiv:2402.14740",),
        summary="KL to the starting weights is subtracted from each completion's reward, times "
        "`beta`.",
    )
