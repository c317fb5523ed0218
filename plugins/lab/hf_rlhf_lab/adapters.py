"""Adapt other libraries' rewards to TRL's signature, for validation and training.

One line in a file, and `FILE.py:NAME` is a reward:

    spelled = VerifiersReward(lambda prompt, answer, **_: MyTask(MyData(answer=answer), CONFIG))
    polite = OpenEnvReward(MyRubric(), action=lambda text: MyAction(message=text))

Neither library is imported before the reward is called.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of

_TRL = ("log_extra", "log_metric", "trainer_state", "environments", "completion_ids")


@dataclass
class VerifiersReward:
    """Return the weighted sum of a verifiers task's rewards and judges (`verifiers.v1`, 0.4).

    Each response is scored as a finished single-turn rollout without a runtime. A response has no
    score if any reward of the task has none, for example because it needs a runtime.
    """

    task: Callable[..., Any]
    """Prompt and columns of a row -> a `verifiers.v1.task.Task`."""

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[Score]:
        """Return a score or None per completion."""
        return [
            await self._score(self.task(prompt, **row), text_of(completion))
            for prompt, completion, row in _rows(prompts, completions, columns)
        ]

    @staticmethod
    async def _score(task: Any, text: str) -> Score:
        from verifiers.v1.trace import MessageNode, Trace
        from verifiers.v1.types import AssistantMessage

        reply = MessageNode.model_construct(message=AssistantMessage(content=text), sampled=True)
        data = SimpleNamespace(data=task.data)
        trace = Trace.model_construct(task=data, nodes=[reply], root_reply=text, ok=True)
        await task.score(trace)
        if not trace.rewards or None in trace.rewards.values():
            return None
        return float(trace.reward)


@dataclass
class OpenEnvReward:
    """Return the score of an OpenEnv rubric for an action and an observation.

    An asynchronous rubric is awaited.
    """

    rubric: Callable[[Any, Any], Any]
    """An `openenv.core.rubrics.Rubric`."""
    action: Callable[[str], Any] = str
    """The text of a completion -> the action that the rubric reads."""
    observation: Callable[..., Any] = SimpleNamespace
    """`prompt` and the columns of a row, by keyword -> the observation that it reads."""

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
    ) -> list[Score]:
        """Return a score per completion."""
        scores = []
        for prompt, completion, row in _rows(prompts, completions, columns):
            observation = self.observation(prompt=prompt, **row)
            score = self.rubric(self.action(text_of(completion)), observation)
            scores.append(await score if inspect.isawaitable(score) else score)
        return scores


def _rows(
    prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any]
) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield prompt, completion and the columns of each row."""
    own = {name: values for name, values in columns.items() if name not in _TRL}
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        yield prompt, completion, {name: values[number] for name, values in own.items()}
