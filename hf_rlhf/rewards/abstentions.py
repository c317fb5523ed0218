"""Stop a run after too many steps in which every completion is dropped and nothing is learned."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError, RewardError
from hf_rlhf.scores import Score


@dataclass
class Abstentions:
    """Counts consecutive steps in which no completion is trained on, equally on all processes.

    A completion is dropped if every reward abstains, or if it was truncated and training masks
    truncated completions (TRL's `mask_truncated_completions`).
    """

    limit: int = 0
    """Consecutive steps that stop the run; 0: no limit."""
    since: int | None = None
    """The first of these steps; None if the last completions are trained on."""

    def count(
        self,
        scores: Sequence[Mapping[str, Score]],
        total: str,
        step: int,
        masked: Sequence[bool] | None = None,
    ) -> None:
        """Count the scores of the completions of all processes; `total` labels the sum.

        `step` is the number of finished steps; a step may have several batches of completions, and
        a batch several steps. `masked` marks truncated completions that are dropped. Warns at the
        first step in which nothing is learned, raises RewardError after too many.
        """
        masked = masked or [False] * len(scores)
        pairs = zip(scores, masked, strict=True)
        if not scores or any(by[total] is not None and not cut for by, cut in pairs):
            self.since = None
            return
        first = self.since is None
        self.since = step if self.since is None else self.since
        steps = step - self.since
        counts = {label: sum(by[label] is None for by in scores) for label in scores[0]}
        parts = (f"{label} on {n}" for label, n in counts.items() if n and label != total)
        finding = f"none of {len(scores)} completions got a reward (abstained: {', '.join(parts)})"
        without, cure = "a reward", _CHECK
        if cut := sum(masked):
            finding = f"{cut} of {len(scores)} completions were cut, and masked"
            without, cure = "a whole completion", _LONGER
        if self.limit and steps >= self.limit:
            raise RewardError(
                f"Stopped at step {step} after {steps} consecutive steps without {without}, in "
                f"which nothing was learned; in the last one {finding}. {cure} The same "
                "command resumes from the last checkpoint. The limit is `max_steps_without_reward`,"
                f" now {self.limit}; 0 means no limit."
            )
        from accelerate import PartialState

        if first and PartialState().is_main_process:
            note = f" The run stops after {self.limit} such steps in a row." if self.limit else ""
            print(
                f"warning: step {step + 1}: {finding}, so nothing is learned from them.{note}",
                flush=True,
            )


_CUT, _FLAT = "completions/clipped_ratio", "frac_reward_zero_std"
"""TRL's names for the shares of truncated completions, and of groups with equal rewards."""
_CHECK = "`hf-rlhf check` scores a few completions and shows each reward's result."
_LONGER = "Raise `max_completion_length`, or write `mask_truncated_completions: false`."
_UNSAVED = "nothing was learned, and nothing is saved except the checkpoints."


def check_learned(history: Sequence[Mapping[str, Any]], total: str, masks: bool = False) -> None:
    """Raise RewardError or DataError if the training log shows that nothing had a loss.

    `masks`: whether truncated completions have no loss. Equal rewards of a group or a whole batch
    raise no error: their completions were scored and tied.
    """
    scored = [entry for entry in history if f"rewards/{total}/none" in entry]
    means = [entry.get(f"rewards/{total}/mean") for entry in scored]
    if scored and not any(mean is not None and math.isfinite(mean) for mean in means):
        raise RewardError(
            "No completion of the whole training got a reward, because every reward abstained: "
            f"{_UNSAVED} {_CHECK}"
        )
    cut = [entry[_CUT] for entry in history if _CUT in entry]
    if masks and cut and min(cut) >= 1:
        raise RewardError(
            "Every completion of the whole training was cut at `max_completion_length`, and "
            f"`mask_truncated_completions` leaves those out: {_UNSAVED} {_LONGER}"
        )
    stepped = [entry for entry in history if entry.get("grad_norm") is not None]
    moved = any(entry["grad_norm"] and math.isfinite(entry["grad_norm"]) for entry in stepped)
    equal = f"rewards/{total}/std"
    flat = [
        entry["grad_norm"] == 0 and (entry.get(_FLAT, 0) >= 1 or entry.get(equal) == 0)
        for entry in stepped
    ]
    if not moved and not all(flat):
        raise DataError(
            f"The gradient of every logged step is 0 or not a number: {_UNSAVED} Either no token "
            "had a loss (`hf-rlhf check` counts the tokens with a loss), or there was nothing to "
            "change, as for a student that equals its teacher."
        )
