"""Grade with a judge how well a response meets a criterion: `criterion`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Judge, Question, Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ConfigError, Problem


@dataclass
class MeetsCriterion:
    """Grade how well a response meets a criterion, by a judge, in [0, 1]; None if the judge fails.

    The judge gets the prompt as context. The graded text can fool a judge: validate this reward
    like any other.
    """

    criterion: str
    """The criterion in words, such as `The response answers the question.`"""
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
        """Return a score in [0, 1], or None, per completion."""
        assert self.judge is not None, "it is refused without one"
        questions = [
            Question("quality", text_of(completion), self.criterion, text_of(prompt), "criterion")
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        return [verdict.score for verdict in await self.judge.judge(questions)]
