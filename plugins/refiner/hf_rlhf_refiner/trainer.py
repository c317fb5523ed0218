"""GRPO for the research refiner, on TRL's public surface alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from trl import GRPOConfig, GRPOTrainer

from hf_rlhf import Method, Trainer
from hf_rlhf.distributed import PromptsPerStep
from hf_rlhf.evaluation import validation_rows
from hf_rlhf.models import policy_arguments
from hf_rlhf.runs import Run


@dataclass
class RefinerConfig(PromptsPerStep, GRPOConfig):  # type: ignore[misc]
    """TRL's `GRPOConfig`, with the global batch said as the recipe says it: in prompts."""


class RefinerTrainer(Trainer, GRPOTrainer):  # type: ignore[misc]
    """GRPO (Shao et al. 2024) under the run's composed reward: `--plugin refiner_grpo`.

    The policy answers from an agent's reasoning and raw search results, and is rewarded by a
    rubric judge and by the precision and recall of its citations. Advantages are standardised
    within the completions of one prompt; KL to the base is the k3 estimator in the loss.
    """

    Config = RefinerConfig
    default_run = "tiny"
    takes_tools = True
    uses_validation_rows = True
    method = Method(
        "GRPO",
        tags=("trl", "grpo"),
        citations=("Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",),
        summary="KL to the base is the k3 estimator in the loss, times `beta`.",
    )

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> list[str]:
        """Return an answer in the right form for a row, for `hf-rlhf check` to score."""
        displayed = row["sources"][:3]
        claims = (f"<snippet id={item['id']}>{item['text']}</snippet>" for item in displayed)
        return [f"<answer>{' '.join(claims)}</answer>"]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this is where the weights are loaded."""
        return cls(
            reward_funcs=[run.reward],
            args=run.training,
            train_dataset=run.dataset["train"],
            eval_dataset=validation_rows(run),
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            **policy_arguments(run),
            **run.tool_arguments(),
        )
