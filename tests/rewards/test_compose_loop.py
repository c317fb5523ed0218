"""The loop that async rewards share: nothing goes on there once a call is over."""

import asyncio
import signal
import threading
import time

import pytest

from hf_rlhf.errors import RewardError
from hf_rlhf.rewards.composed import ComposedReward, Part


class Slow:
    """Waits for an hour; says when it began and when it was cancelled."""

    def __init__(self):
        self.began, self.stopped = threading.Event(), threading.Event()

    async def __call__(self, prompts, completions, **_):
        self.began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.stopped.set()


class Fails:
    def __init__(self, after):
        self.after = after

    async def __call__(self, prompts, completions, **_):
        while not self.after.is_set():
            await asyncio.sleep(0.01)
        raise ValueError("broken")


def test_when_one_reward_fails_the_others_are_stopped():
    slow = Slow()
    composed = ComposedReward((Part("slow", slow), Part("fails", Fails(slow.began))))
    with pytest.raises(RewardError, match="broken"):
        composed.score(["p"], ["c"])
    assert slow.stopped.wait(60)


def test_ctrl_c_stops_the_rewards_under_way_and_the_next_call_works():
    class Works:
        async def __call__(self, prompts, completions, **_):
            return [1.0]

    slow = Slow()
    main = threading.main_thread().ident

    def interrupt():
        slow.began.wait(60)
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        ComposedReward((Part("slow", slow),)).score(["p"], ["c"])
    assert slow.stopped.wait(60)
    assert ComposedReward((Part("works", Works()),)).score(["p"], ["c"]).total == [1.0]
