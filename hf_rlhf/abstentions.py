"""Steps in which every reward abstains: they teach nothing, so that too many of them end a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import RewardError


@dataclass
class Abstentions:
    """Counts the steps in a row in which no completion got a reward, on all processes alike."""

    most: int = 0
    """So many of them stop the run; 0: any number is taken."""
    since: int | None = None
    """The step in which the first of them began, None if the last completions got a reward."""

    def count(self, scores: Sequence[Mapping[str, Score]], total: str, step: int) -> None:
        """Take the scores of completions, of all processes, with the `total` of each.

        `step` is how many steps are done; a step may have several batches of completions, or a
        batch several steps. Says so when the first such step comes. Raises RewardError when there
        were too many.
        """
        if not scores or any(by[total] is not None for by in scores):
            self.since = None
            return
        first = self.since is None
        self.since = step if self.since is None else self.since
        steps = step - self.since
        counts = {label: sum(by[label] is None for by in scores) for label in scores[0]}
        silent = (f"{label} on {n}" for label, n in counts.items() if n and label != total)
        what = f"none of {len(scores)} completions got a reward (abstained: {', '.join(silent)})"
        if self.most and steps >= self.most:
            raise RewardError(
                f"Stopped at step {step}: {steps} steps in a row had no reward, so nothing was "
                f"learned in them, and now again {what}. "
                "`hf-rlhf check` scores a few completions and shows what the rewards say. The same "
                "command goes on from the last checkpoint. `max_steps_without_reward` is how many "
                f"such steps stop a run, here {self.most}; 0: no number does."
            )
        if first and _is_main_process():
            limit = f" After {self.most} such steps in a row the run stops." if self.most else ""
            print(
                f"warning: step {step + 1}: {what}, so nothing is learned from them.{limit}",
                flush=True,
            )


def check_rewarded(history: Sequence[Mapping[str, Any]], total: str) -> None:
    """Raise RewardError for the log of a whole training in which no completion got a reward."""
    scored = [entry for entry in history if f"rewards/{total}/none" in entry]
    means = [entry.get(f"rewards/{total}/mean") for entry in scored]
    if scored and not any(mean is not None and math.isfinite(mean) for mean in means):
        raise RewardError(
            "No completion of the whole training got a reward, as every reward abstained: nothing "
            "was learned, and nothing is saved but the checkpoints. `hf-rlhf check` scores a few "
            "completions and shows what the rewards say."
        )


def _is_main_process() -> bool:
    from accelerate import PartialState

    return bool(PartialState().is_main_process)
