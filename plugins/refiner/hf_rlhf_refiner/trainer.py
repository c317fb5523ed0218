"""GRPO for the research refiner, on TRL's public surface alone."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf import Method
from hf_rlhf_classic.grpo import GroupTrainer


class RefinerTrainer(GroupTrainer):
    """GRPO (Shao et al. 2024) under the run's composed reward: `--plugin refiner_grpo`.

    The policy answers from an agent's reasoning and raw search results, and is rewarded by a rubric
    judge and by the precision and recall of its citations. Advantages are standardised within the
    completions of one prompt; The loss has a KL term to the base (k3 estimator).
    """

    default_run = "tiny"
    takes_tools = True
    method = Method(
        "GRPO",
        tags=("trl", "grpo"),
        citations=("Shao et al. 2024, DeepSeekMath, arXiv:2402.03300",),
        summary="KL to the base is the k3 estimator in the loss, times `beta`.",
    )

    @staticmethod
    def trial_completions(row: Mapping[str, Any]) -> list[str]:
        """Return a well-formed answer for a row, for `hf-rlhf check` to score."""
        displayed = row["sources"][:3]
        claims = (f"<snippet id={item['id']}>{item['text']}</snippet>" for item in displayed)
        return [f"<answer>{' '.join(claims)}</answer>"]
