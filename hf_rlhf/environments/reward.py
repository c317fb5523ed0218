"""The environment's own reward."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.rewards.loop import run_together
from hf_rlhf.scores import Score


@dataclass
class EnvironmentReward:
    """The environment's `get_reward()` for the finished completion.

    The method may be async. Without it, the attribute `reward` is read (OpenReward, Harbor). None
    abstains.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], environments: Sequence[Any]
    ) -> list[Score]:
        """Return a score for each completion."""
        scores = [
            environment.get_reward() if hasattr(environment, "get_reward") else environment.reward
            for environment in environments
        ]
        pending = [score for score in scores if inspect.iscoroutine(score)]
        results = iter(run_together(pending) if pending else ())
        return [next(results) if inspect.iscoroutine(score) else score for score in scores]
