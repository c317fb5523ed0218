"""The simplest trainer: TRL's GRPO as a component, for tests that need any trainer."""

from typing import Self

from trl import GRPOConfig, GRPOTrainer

from hf_rlhf.contracts import Trainer
from hf_rlhf.models.loading import policy_arguments
from hf_rlhf.runs.run import Run


class PlainGRPO(Trainer, GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer`, built from a run and otherwise unchanged."""

    Config = GRPOConfig
    takes_tools = True

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer from `run`."""
        return cls(
            reward_funcs=[run.reward],
            args=run.training,
            train_dataset=run.dataset["train"],
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            **policy_arguments(run),
            **run.tool_arguments(),
        )
