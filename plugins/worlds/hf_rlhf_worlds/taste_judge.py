"""A judge of orders with a known utility and known faults instead of a model: `taste_judge`."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf_worlds.tastes import Taste, utility


@dataclass
class TasteJudge:
    """Score an order by its utility for the person in the context, with noise and a length bias.

    A question of another world, or of a kind other than `quality`, gets no score.
    """

    noise: float = 0.0
    """Standard deviation of the noise, in units of utility; equal orders get equal noise."""
    length_bias: float = 0.0
    """Bias per word."""
    seed: int = 0
    _calls: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf or not math.isfinite(self.length_bias):
            raise JudgeError("taste_judge: noise must be at least 0, and length_bias finite.")
        self._calls = dict.fromkeys(("calls", "failed"), 0.0)

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order."""
        verdicts = [self._verdict(question) for question in questions]
        self._calls["calls"] += len(verdicts)
        self._calls["failed"] += sum(verdict.score is None for verdict in verdicts)
        return verdicts

    def describe(self) -> Mapping[str, Any]:
        """Return the settings of the verdicts."""
        settings = {"noise": self.noise, "length_bias": self.length_bias, "seed": self.seed}
        return {"judge": "taste_judge", **settings}

    def usage(self) -> Mapping[str, float]:
        """Return running totals."""
        return dict(self._calls)

    async def ping(self) -> str:
        """Return that the judge is available."""
        return "taste_judge answers"

    def _verdict(self, question: Question) -> Verdict:
        taste = Taste.parse(question.context)
        if taste is None or question.kind != "quality":
            return Verdict(None, "The context is no taste of the world `tastes`.")
        value = noisy_utility(
            taste, question.candidate, self.noise, self.length_bias, str(self.seed)
        )
        return Verdict(1 / (1 + math.exp(-value)), f"Worth {value:.2f}.")


def noisy_utility(
    taste: Taste, text: str, noise: float, length_bias: float, draw: str = ""
) -> float:
    """Return a faulty judge's utility of an order; `draw` seeds the noise."""
    error = random.Random(f"{draw}/{taste.prompt}/{text}").gauss(0.0, noise)
    return utility(taste, text) + length_bias * len(text.split()) + error
