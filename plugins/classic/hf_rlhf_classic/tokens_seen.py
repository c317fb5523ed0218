"""TRL's count of trained tokens, across a resumption."""

from typing import Any

from transformers import TrainerCallback


class TokensSeen(TrainerCallback):  # type: ignore[misc]
    """Continues the `num_tokens` of SFT, DPO and reward trainers from a checkpoint.

    TRL 1.16 keeps it in the trainer alone, and begins anew at 0. No public name reaches it.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the count from the last log, which always precedes a save."""
        counts = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
        self.trainer._total_train_tokens = int(counts[-1]) if counts else 0
