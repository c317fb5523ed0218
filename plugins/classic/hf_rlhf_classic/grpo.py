"""Group relative policy optimization under a composed reward, with TRL's public API only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from hf_rlhf import Method
from hf_rlhf.contracts import StepShape
from hf_rlhf.distributed import PromptsPerStep
from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import validation_rows
from hf_rlhf.models import policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import common_problems
from hf_rlhf_classic.reference import SavesNoReference, held_reference
from hf_rlhf_classic.replay import Kept, Replays, replay_problems, sampler
from hf_rlhf_classic.shares_prompt import SharesPrompt, SharesPromptConfig, sharing_problems
from hf_rlhf_classic.turn_credit import CreditsTurns, TurnCredit, credit_problems

FLAT = "frac_reward_zero_std"
"""TRL's name for the share of groups with equal rewards for all completions."""


@dataclass
class GroupConfig(SharesPromptConfig, PromptsPerStep, GRPOConfig):  # type: ignore[misc]
    """TRL's `GRPOConfig`, with the option to set the global batch in prompts."""

    credit: Literal["completion", "turn"] = field(
        default="completion",
        metadata={
            "help": "turn: what a turn earned (rewards with `turn_scores`) is no advantage of the "
            "turns after it."
        },
    )
    keep_rollouts: bool = field(
        default=False,
        metadata={"help": "Keep tokens, log-probabilities and scores, for the dataset `rollouts`."},
    )


class GroupSampling(SavesNoReference, SharesPrompt):
    """Base of trainers that sample a group of completions for each prompt."""

    columns = frozenset({"prompt"})
    uses_validation_rows = True
    args: Any
    eos_token_ids: Any
    """TRL's, like all else that `from_run` needs."""

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Yield problems that would stop or spoil training, before weights load."""
        return [*common_problems(run), *sharing_problems(run)]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        build: Any = cls
        trainer: Self = build(
            **policy_arguments(run),
            **run.tool_arguments(),
            reward_funcs=[cls.credited(run)],
            args=run.training,
            train_dataset=run.dataset["train"],
            eval_dataset=validation_rows(run),
            processing_class=run.tokenizer,
            callbacks=[*run.callbacks, TellFlatGroups()],
        )
        if run.training.mask_truncated_completions and run.reward is not None:
            # TRL also treats a completion that ends with padding as complete.
            ends = (*trainer.eos_token_ids, run.tokenizer.pad_token_id)
            run.reward.learned_ends = frozenset(ends)
        return trainer

    @classmethod
    def credited(cls, run: Run) -> Any:
        """Return the reward that TRL calls."""
        return run.reward

    @classmethod
    def step_shape(cls, run: Run) -> StepShape:
        """Return the step's shape: TRL's fused head, and the reference."""
        most = run.training.max_completion_length
        packed = cls.packed_rows(run, lambda tokens: max(1, tokens - most))
        return StepShape(head="fused", held=held_reference(run), packed=packed)


class GroupTrainer(GroupSampling, CreditsTurns, Replays, GRPOTrainer):  # type: ignore[misc]
    """GRPO (Shao et al. 2024) under the run's composed reward: `--plugin grpo`.

    Advantages are rewards standardised within the completions of a single prompt; a group with
    equal rewards has no learning signal, and the share of such groups is logged and reported. The
    loss adds `beta` times the KL to the start of training (the base or the continued adapter), by
    k3.
    """

    Config = GroupConfig
    default_run = "tiny"
    takes_tools = True
    method = Method(
        "GRPO",
        tags=("trl", "grpo"),
        citations=("Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",),
        summary="KL to the starting weights is the k3 estimator in the loss, times `beta`.",
    )

    @classmethod
    def preflight(cls, run: Run) -> Iterable[Problem]:
        """Add why turns cannot have their own credit, or rollouts not be kept or replayed."""
        return [*super().preflight(run), *credit_problems(run), *replay_problems(run)]

    @classmethod
    def credited(cls, run: Run) -> Any:
        """Return the run's reward, which keeps the scores of turns and the rollouts if asked to."""
        args = run.training
        reward: Any = run.reward
        if args.keep_rollouts:
            reward = Kept(reward, run, sampler(run))
        if args.credit == "completion":
            return reward
        return TurnCredit(reward, args.num_generations, run.tokenizer.decode)

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this loads the weights."""
        trainer = super().from_run(run)
        trainer.watch_credit()
        trainer.keep_or_replay(run, trainer.reward_funcs[0])
        return trainer


class TellFlatGroups(TrainerCallback):  # type: ignore[misc]
    """Prints a note if training begins with groups that all have equal rewards."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        """Print it at the first and tenth log if no group had differing rewards."""
        shares = [entry[FLAT] for entry in state.log_history if FLAT in entry]
        flat = FLAT in logs and len(shares) in (1, 10) and min(shares) == 1
        if flat and state.is_world_process_zero:
            print(
                f"note: to step {state.global_step}, every completion of a prompt got the same "
                "reward as the others, so nothing is learned. Rewards must tell completions of one "
                "prompt apart: `hf-rlhf check` shows their scores; a higher `temperature`, more "
                "`num_generations`, or a policy that is sometimes right (SFT first) may help.",
                flush=True,
            )
