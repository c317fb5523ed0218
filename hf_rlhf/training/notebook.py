"""Training progress in a notebook: transformers' table with the run's metrics."""

from collections.abc import Mapping
from typing import Any

from transformers.utils.notebook import NotebookProgressCallback, NotebookTrainingTracker

from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.training.progress import FACTS

_PLACES = 3


class NotebookTable(NotebookProgressCallback):  # type: ignore[misc]
    """A bar, and a row with rewards for each logging step; transformers displays only the loss.

    It replaces the lines that a run prints on a terminal.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the table without columns: the first row sets them."""
        super().on_train_begin(args, state, control, **kwargs)
        self.training_tracker = NotebookTrainingTracker(state.max_steps)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any
    ) -> None:
        """Add the row of a logging step."""
        if "loss" in logs and self.training_tracker is not None:
            self.training_tracker.write_line({"Step": state.global_step, **columns(logs)})

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any], **_: Any
    ) -> None:
        """Add the evaluation to the row of its step."""
        if (tracker := self.training_tracker) is None:
            return
        shown = {
            key.replace("_", " ", 1): f"{value:.{_PLACES}f}"
            for key, value in metrics.items()
            if isinstance(value, float) and not key.endswith(("_runtime", "_per_second"))
        }
        tracker.write_line({"Step": state.global_step, **shown})
        tracker.remove_child()
        self.prediction_bar, self._force_next_update = None, True


def columns(logs: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics of a logging step by column title: rewards, or the loss."""
    ends = ("rewards/", "/mean")
    means = {
        key.removeprefix(ends[0]).removesuffix(ends[1]): value
        for key, value in logs.items()
        if key.startswith(ends[0]) and key.endswith(ends[1]) and value is not None
    }
    total = means.pop(TOTAL, None)
    first = {"Loss": logs["loss"]} if total is None else {"Reward": total}
    facts = {name: logs[key] for key, name, _ in FACTS if isinstance(logs.get(key), int | float)}
    shown = {**first, **(means if len(means) > 1 else {}), **facts}
    return {title: f"{value:.{_PLACES}f}" for title, value in shown.items()}
