"""Rewards of agents' runs: the outcome, and the calls that led to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hf_rlhf.scores import Score
from hf_rlhf_agents.code import code_of, passed
from hf_rlhf_agents.sandbox import SandboxError
from hf_rlhf_agents.scores import Called, answer_of, calls_of, process, right
from hf_rlhf_agents.tasks import Task


@dataclass
class TaskOutcome:
    """1.0 for a right answer, 0.0 for a wrong one; for code the share of hidden cases passed.

    A run in which a tool or the sandbox could not run has no score.
    """

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        task: Sequence[str],
        environments: Sequence[Any] | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score for each completion, None where it could not be measured."""
        environments = environments or [None] * len(completions)
        return [
            None if getattr(environment, "unavailable", None) else self._score(each, completion)
            for each, completion, environment in zip(task, completions, environments, strict=True)
        ]

    def _score(self, task: str, completion: Any) -> Score:
        return outcome(Task.model_validate_json(task), _messages(completion))


@dataclass
class TaskProcess:
    """Edit similarity of the calls with the expected calls, from 0.0 to 1.0.

    It pays for calls and not for answers: compose it with `task_outcome`.
    """

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[str], **_: Any
    ) -> list[Score]:
        """Return a score for each completion."""
        pairs = zip(task, completions, strict=True)
        return [_progress(each, calls_of(_messages(completion))) for each, completion in pairs]

    def turn_scores(
        self, prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[str], **_: Any
    ) -> list[list[float]]:
        """Return by how much each turn of a completion raised its score, for `credit: turn`."""
        found = []
        for each, completion in zip(task, completions, strict=True):
            turns: list[Any] = []
            scores = [0.0]
            for message in _messages(completion):
                turns.append(message)
                if message["role"] == "assistant":
                    scores.append(_progress(each, calls_of(turns)))
            found.append([after - before for before, after in pairwise(scores)])
        return found


def _progress(task: str, calls: Sequence[Called]) -> float:
    expected = Task.model_validate_json(task)
    return process(expected, calls).score if expected.calls else 0.0


def outcome(task: Task, messages: Sequence[Any], made: Sequence[Called] | None = None) -> Score:
    """Return the score of a run, None if the sandbox could not run.

    `made` are its calls, if they do not all stand in `messages`.
    """
    if task.scored == "cases":
        text = next((m.get("content") for m in reversed(messages) if m["role"] == "assistant"), "")
        try:
            return passed(task, code_of(str(text or ""))) / len(task.cases)
        except SandboxError:
            return None
    answer = answer_of(messages)
    return float(right(task, answer, calls_of(messages) if made is None else made))


def _messages(completion: Any) -> Sequence[Any]:
    text = isinstance(completion, str)
    return [{"role": "assistant", "content": completion}] if text else completion
