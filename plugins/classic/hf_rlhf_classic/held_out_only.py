"""Evaluate in training by the run's held-out metrics only, where TRL's loss is meaningless."""

from collections.abc import Iterator
from typing import Any

from hf_rlhf.errors import Problem
from hf_rlhf.evaluation import is_validated
from hf_rlhf.runs import Run


class HeldOutOnly:
    """Leaves evaluation to the run's callback. List it before the trainer's other bases."""

    uses_validation_rows = True
    args: Any
    state: Any
    control: Any
    callback_handler: Any
    """transformers', like all else."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Return the callbacks' metrics; held-out prompts have no loss."""
        metrics: dict[str, float] = {}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


def no_eval_loss(run: Run) -> Iterator[Problem]:
    """Yield a problem if the best weights are selected by an unmeasured loss."""
    if is_validated(run) and run.training.metric_for_best_model in ("loss", "eval_loss"):
        yield Problem(
            "metric_for_best_model",
            "is the loss, which this trainer does not have on held-out prompts.",
            "Name `total` or a reward.",
        )
