"""TRL's count of trained tokens, across a resumption."""

from typing import Any

from transformers import TrainerCallback


class TokensSeen(TrainerCallback):  # type: ignore[misc]
    """Lets the `num_tokens` of SFT, DPO and reward trainers go on where a checkpoint left it.

    TRL 1.16 keeps it in the trainer alone, and begins anew at 0. No public name reaches it.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take the count of the last logging, which a save always follows."""
        counts = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.trainer._total_train_tokens = int(counts[-1]) if counts else 0
