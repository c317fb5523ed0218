"""`criterion`: how far a response meets a criterion in words, as a judge grades it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Judge, Question, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ConfigError, Problem


@dataclass
class MeetsCriterion:
    """How far a response meets a criterion, graded by a judge: in [0, 1], None if the judge fails.

    The judge sees the prompt as context. A judge can be fooled by the text that it grades:
    validate this reward as any other.
    """

    criterion: str
    """In words, such as `The response answers the question that was asked.`"""
    judge: Judge | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError without a judge or a criterion."""
        if self.judge is None or not self.criterion.strip():
            what = "has no judge." if self.judge is None else "`criterion` is empty."
            fix = "Declare one under `judges`, and name it: `judge: LABEL`."
            fix = fix if self.judge is None else "Say in words what a good response does."
            raise ConfigError([Problem("criterion", what, fix)])

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any
    ) -> list[Score]:
        """Return one score in [0, 1], or None, per completion."""
        assert self.judge is not None, "it is refused without one"
        questions = [
            Question("quality", text_of(completion), self.criterion, text_of(prompt), "criterion")
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        return [verdict.score for verdict in await self.judge.judge(questions)]
