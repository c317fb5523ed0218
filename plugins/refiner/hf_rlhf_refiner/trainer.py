"""GRPO for the research refiner, on TRL's public surface alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from trl import GRPOConfig, GRPOTrainer

from hf_rlhf.policy import policy_arguments
from hf_rlhf.processes import processes
from hf_rlhf.run import Run


@dataclass
class RefinerConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's `GRPOConfig`, with the global batch said as the recipe says it: in prompts.

    With `prompts_per_step`, gradient accumulation follows from the number of processes, so the
    batch is the same on one GPU and on eight: `prompts_per_step * num_generations` completions
    make one generation and one optimizer step.
    """

    prompts_per_step: int | None = field(
        default=None,
        metadata={
            "help": "Prompts of one optimizer step, over all processes. Accumulation is derived."
        },
    )

    def __post_init__(self) -> None:
        if self.prompts_per_step is not None:
            derived = self._accumulation(self.prompts_per_step)
            if self.gradient_accumulation_steps not in (1, derived):
                raise ValueError(
                    f"gradient_accumulation_steps {self.gradient_accumulation_steps} is not the "
                    f"{derived} that prompts_per_step {self.prompts_per_step} makes. Give one."
                )
            self.gradient_accumulation_steps: int = derived
        if str(getattr(self.eval_strategy, "value", self.eval_strategy)) != "no":
            raise ValueError(
                "eval_strategy is for a trainer with an evaluation dataset. This run evaluates "
                "before and after training, as its `evaluation` section says."
            )
        super().__post_init__()

    def _accumulation(self, prompts: int) -> int:
        completions = prompts * (self.num_generations or 1)
        micro = self.per_device_train_batch_size * processes()
        if completions % micro:
            raise ValueError(
                f"prompts_per_step {prompts} x num_generations {self.num_generations} = "
                f"{completions} completions do not divide into {processes()} processes x "
                f"per_device_train_batch_size {self.per_device_train_batch_size}. Change one."
            )
        return int(completions // micro)


class RefinerTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO (Shao et al. 2024) under the run's composed reward: `--plugin refiner_grpo`.

    The policy answers from an agent's reasoning and raw search results, and is rewarded by a
    rubric judge and by the precision and recall of its citations. Advantages are standardised
    within the completions of one prompt; KL to the base is the k3 estimator in the loss.
    """

    Config = RefinerConfig
    default_run = "tiny"

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> list[str]:
        """Return an answer in the right form for a row, for `hf-rlhf check` to score."""
        shown = row["sources"][:3]
        claims = (f"<snippet id={one['id']}>{one['text']}</snippet>" for one in shown)
        return [f"<answer>{' '.join(claims)}</answer>"]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Build the trainer that `run` describes; this is where the weights are loaded."""
        return cls(
            reward_funcs=[run.reward],
            args=run.training,
            train_dataset=run.dataset["train"],
            processing_class=run.tokenizer,
            callbacks=list(run.callbacks),
            **policy_arguments(run),
        )

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none: TRL's draft knows nothing of the run, whose card is made of its record."""
