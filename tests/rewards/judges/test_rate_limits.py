"""Caps hold across threads and event loops, and processes share them; the cache is shared, too."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges import rate_limits
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.rate_limits import Limits
from hf_rlhf.testing.scripted_server import ScriptedServer

JUDGE_IN_TWO_THREADS = """
import asyncio, sys, threading
from hf_rlhf import Question
from hf_rlhf.rewards import OpenAIJudge
url, cap, rpm, cache = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "cache"
judge = OpenAIJudge("scripted", url, max_concurrency=cap, cache=cache,
                    requests_per_minute=int(rpm) if rpm else None, deadline=10.0)
scored = []
def work(thread):
    name = "" if cache else f"{sys.argv[4]} {thread}"
    questions = [Question("quality", f"{name} {n}", "c") for n in range(12)]
    verdicts = asyncio.run(judge.judge(questions))
    scored.append(sum(verdict.score is not None for verdict in verdicts))
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*scored)
"""


def launch(url, folder, processes, *arguments):
    """Start the processes of one launch, and return what they print."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JUDGE_IN_TWO_THREADS, url, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "HF_RLHF_CACHE": str(folder / "cache"),
                "WORLD_SIZE": str(processes),
            },
        )
        for _ in range(processes)
    ]
    texts = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [int(word) for text in texts for word in text.split()]


def test_a_cap_holds_across_threads_and_event_loops():
    held = []
    limits = Limits("threads", 3)

    async def call():
        async with limits.call(1):
            start = time.monotonic()
            await asyncio.sleep(0.02)
            held.append((start, time.monotonic()))

    async def calls():
        await asyncio.gather(*(call() for _ in range(20)))

    threads = [threading.Thread(target=lambda: asyncio.run(calls())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 40
    under_way = [sum(start <= moment < end for start, end in held) for moment, _ in held]
    assert max(under_way) == 3  # never above, and really used


@pytest.mark.slow
def test_two_processes_share_the_cap_and_the_rate(tmp_path):
    with ScriptedServer(delay=0.02) as server:
        scored = launch(server.base_url, tmp_path, 2, 4, "", "calls")
        assert scored == [12] * 4
        assert server.peak == 4, server.peak  # never above, and really used
    with ScriptedServer() as server:
        scored = launch(server.base_url, tmp_path, 2, 8, 10, "rates")
        assert len(server.times) == sum(scored) == 10  # the rest had to wait for the next minute


def test_each_process_has_an_equal_share(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")

    async def second_call(limits):
        async with limits.call(1):
            async with asyncio.timeout(0.1):
                async with limits.call(1):
                    return True

    assert asyncio.run(second_call(Limits("four for two", 4)))
    with pytest.raises(TimeoutError):
        asyncio.run(second_call(Limits("three for two", 3)))
    with pytest.raises(TimeoutError):
        asyncio.run(second_call(Limits("rate for two", 8, requests_per_minute=3)))
    with pytest.raises(TimeoutError):
        asyncio.run(second_call(Limits("tokens for two", 8, tokens_per_minute=3)))
    with pytest.raises(JudgeError, match="`max_concurrency`.*is 1, for 2 processes.*at least 2"):
        Limits("server", 1)
    with pytest.raises(JudgeError, match="`requests_per_minute`.*at least 2"):
        Limits("server", 8, requests_per_minute=1)


def test_the_window_slides(monkeypatch):
    monkeypatch.setattr(rate_limits, "_MINUTE_S", 0.3)
    limits = Limits("window", 8, requests_per_minute=10)
    times = []

    async def call():
        async with limits.call(1) as booking:
            times.append(booking.at)

    async def calls():
        await asyncio.gather(*(call() for _ in range(24)))

    asyncio.run(calls())
    assert len(times) == 24
    assert all(later - earlier >= 0.3 for earlier, later in zip(times, times[10:], strict=False))


def test_tokens_per_minute_are_booked_as_estimated_and_corrected_to_what_was_used(monkeypatch):
    monkeypatch.setattr(rate_limits, "_MINUTE_S", 1.0)
    limits = Limits("tokens", 8, tokens_per_minute=100)

    async def spend(estimate, used):
        async with limits.call(estimate) as booking:
            booking.tokens = used
        return time.monotonic()

    async def three():
        start = time.monotonic()
        return [await spend(80, used) - start for used in (10, 80, 1)]

    first, second, third = asyncio.run(three())
    assert first < second < 0.95  # corrected to 10, so 80 more fit
    assert 0.95 < third < 30


def test_the_tokens_that_the_server_counts_replace_the_estimate(monkeypatch):
    monkeypatch.setattr(rate_limits, "_CALLS", {})
    with ScriptedServer() as server:
        judge = OpenAIJudge("scripted", server.base_url, tokens_per_minute=10**6, cache=False)
        asyncio.run(judge.judge([Question("quality", "text " * 500, "criterion")]))
    (calls,) = rate_limits._CALLS.values()
    usage = judge.usage()
    (booking,) = calls._recent
    assert booking.tokens == usage["prompt_tokens"] + usage["completion_tokens"] > 0


def test_a_call_larger_than_the_token_cap_goes_alone_instead_of_never():
    async def big():
        async with Limits("big", 1, tokens_per_minute=10).call(1000):
            return True

    assert asyncio.run(asyncio.wait_for(big(), 60))


def test_two_servers_do_not_share_a_cap():
    async def both():
        async with Limits("a", 1).call(1), Limits("b", 1).call(1):
            return True

    assert asyncio.run(asyncio.wait_for(both(), 60))


def test_a_call_that_is_cancelled_frees_its_place():
    limits = Limits("cancelled", 1)

    async def hold():
        async with limits.call(1):
            await asyncio.sleep(60)

    async def cancelled_then_called():
        task = asyncio.create_task(hold())
        await asyncio.sleep(0.01)
        task.cancel()
        async with limits.call(1):
            return True

    assert asyncio.run(asyncio.wait_for(cancelled_then_called(), 30))


def test_a_forked_child_has_places_of_its_own():
    async def hold_and_fork():
        async with Limits("forked", 1).call(1):
            child = os.fork()
            if child == 0:

                async def call():
                    async with Limits("forked", 1).call(1):
                        return True

                thread = threading.Thread(target=lambda: os._exit(not asyncio.run(call())))
                thread.start()
                thread.join()
            return os.waitpid(child, 0)[1]

    assert asyncio.run(asyncio.wait_for(hold_and_fork(), 60)) == 0


@pytest.mark.slow
def test_a_verdict_is_paid_for_once_by_all_processes(tmp_path):
    with ScriptedServer() as server:
        launch(server.base_url, tmp_path, 1, 8, "", "cache")
        asked = len(server.requests)
        assert launch(server.base_url, tmp_path, 2, 8, "", "cache") == [12] * 4
        assert len(server.requests) == asked
    assert 12 <= asked <= 24  # two threads at the same time may both miss


def test_judges_of_one_server_share_its_cap():
    with ScriptedServer(delay=0.02) as server:
        judges = [OpenAIJudge("scripted", server.base_url, max_concurrency=2, cache=False)] * 2

        async def ask():
            questions = [Question("quality", str(n), "c") for n in range(6)]
            await asyncio.gather(*(judge.judge(questions) for judge in judges))

        asyncio.run(ask())
        assert server.peak == 2
