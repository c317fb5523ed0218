"""Rewards of verifiers and OpenEnv: by objects of the same form, and by the packages themselves."""

import asyncio
from types import SimpleNamespace

import pytest

from hf_rlhf_lab.adapters import OpenEnvReward, VerifiersReward


class Longer:
    """As a rubric of OpenEnv: called with an action and an observation."""

    def __call__(self, action, observation):
        return float(len(action.message) > observation.least)


def test_a_rubric_reads_action_and_observation():
    reward = OpenEnvReward(Longer(), action=lambda text: SimpleNamespace(message=text))
    given = {"prompts": ["p", "p"], "completions": ["abc", "a"], "least": [2, 2]}
    assert asyncio.run(reward(**given, log_metric=None)) == [1.0, 0.0]


def test_the_rewards_of_a_verifiers_task_are_summed_by_weight():
    vf = pytest.importorskip("verifiers.v1", reason="needs `pip install verifiers`")
    from verifiers.v1.task import Task, TaskData

    class Answer(TaskData):
        answer: str

    class Spelled(Task[Answer]):
        @vf.reward(weight=2.0)
        async def exact(self, trace):
            return float(trace.last_reply == self.data.answer)

        @vf.reward
        async def short(self, trace):
            return float(len(trace.last_reply) < 4)

    reward = VerifiersReward(lambda prompt, answer: Spelled(Answer(prompt=prompt, answer=answer)))
    given = {"prompts": ["p"] * 3, "completions": ["abc", "ab", "abcdef"], "answer": ["abc"] * 3}
    assert asyncio.run(reward(**given)) == [3.0, 1.0, 0.0]
