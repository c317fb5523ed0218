"""Steps in which every reward abstains: nothing is learned, so too many of them stop the run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import RewardError


@dataclass
class Abstentions:
    """Counts consecutive steps in which no completion got a reward, equally on all processes."""

    limit: int = 0
    """So many consecutive steps stop the run; 0: no limit."""
    since: int | None = None
    """The first of these steps; None if the last completions got a reward."""

    def count(self, scores: Sequence[Mapping[str, Score]], total: str, step: int) -> None:
        """Add the scores of the completions of all processes; `total` labels the sum.

        `step` is the number of finished steps; a step may have several batches of completions, and
        a batch several steps. Warns at the first step without a reward, raises RewardError after
        too many.
        """
        if not scores or any(by[total] is not None for by in scores):
            self.since = None
            return
        first = self.since is None
        self.since = step if self.since is None else self.since
        steps = step - self.since
        counts = {label: sum(by[label] is None for by in scores) for label in scores[0]}
        parts = (f"{label} on {n}" for label, n in counts.items() if n and label != total)
        finding = f"none of {len(scores)} completions got a reward (abstained: {', '.join(parts)})"
        if self.limit and steps >= self.limit:
            raise RewardError(
                f"Stopped at step {step} after {steps} consecutive steps without a reward, in "
                f"which nothing was learned; in the last one {finding}. "
                "`hf-rlhf check` scores a few completions and shows each reward's result. The same "
                "command resumes from the last checkpoint. The limit is `max_steps_without_reward`,"
                f" now {self.limit}; 0 means no limit."
            )
        if first and _is_main_process():
            note = f" The run stops after {self.limit} such steps in a row." if self.limit else ""
            print(
                f"warning: step {step + 1}: {finding}, so nothing is learned from them.{note}",
                flush=True,
            )


def check_rewarded(history: Sequence[Mapping[str, Any]], total: str) -> None:
    """Raise RewardError if the training log shows that no completion got a reward."""
    scored = [entry for entry in history if f"rewards/{total}/none" in entry]
    means = [entry.get(f"rewards/{total}/mean") for entry in scored]
    if scored and not any(mean is not None and math.isfinite(mean) for mean in means):
        raise RewardError(
            "No completion of the whole training got a reward, because every reward abstained: "
            "nothing was learned, and nothing is saved except the checkpoints. `hf-rlhf check` "
            "scores a few completions and shows each reward's result."
        )


def _is_main_process() -> bool:
    from accelerate import PartialState

    return bool(PartialState().is_main_process)
