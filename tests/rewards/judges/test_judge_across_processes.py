"""Caps and cache hold across the processes and threads of one machine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.rate_limits import _SEARCH_INTERVAL, Limits, _Slots
from hf_rlhf.testing.scripted_server import ScriptedServer

JUDGE_IN_TWO_THREADS = """
import aiohttp, asyncio, sys, threading
from hf_rlhf.contracts import Question
from hf_rlhf.rewards.judges.openai import OpenAIJudge
url, name, cap, rpm = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
judge = OpenAIJudge("scripted", url, max_concurrency=cap, cache=False,
                    requests_per_minute=int(rpm) if rpm else None, deadline=float(sys.argv[5]))
answered = []
def work(thread):
    questions = [Question("quality", f"{name} {thread} {n}", "c") for n in range(12)]
    verdicts = asyncio.run(judge.judge(questions))
    answered.append(sum(verdict.score is not None for verdict in verdicts))
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(*answered)
"""

HOLD_IN_TWO_THREADS = """
import asyncio, json, sys, threading, time
from hf_rlhf.rewards.judges.rate_limits import Limits
limits = Limits("server", 3)
held = []
async def one():
    async with limits.call(1):
        start = time.time()
        await asyncio.sleep(0.02)
        held.append((start, time.time()))
async def all_of_them():
    await asyncio.gather(*(one() for _ in range(20)))
threads = [threading.Thread(target=lambda: asyncio.run(all_of_them())) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(held))
"""

BOOK = """
import asyncio, json, sys, time
from hf_rlhf.rewards.judges import rate_limits as limits as module
class Clock:
    monotonic = time.monotonic
    def time():
        Clock.read = time.time()
        return Clock.read
module.time = Clock
limits = module.Limits(sys.argv[1], 8, requests_per_minute=10, minute=1.0)
async def one():
    async with limits.call(1):
        return Clock.read  # as it was booked: no other task runs in between
async def all_of_them():
    return await asyncio.gather(*(one() for _ in range(12)))
print(json.dumps(asyncio.run(all_of_them())))
"""


def start(script, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "HF_RLHF_CACHE": str(folder / "cache")},
    )


def outputs(processes):
    processes = list(processes)  # all are started before the first is waited for
    texts = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return texts


def test_the_cap_holds_across_processes_threads_and_loops(tmp_path):
    held = [
        interval
        for text in outputs(start(HOLD_IN_TWO_THREADS, tmp_path) for _ in range(2))
        for interval in json.loads(text)
    ]
    assert len(held) == 80
    under_way = [sum(began <= moment < ended for began, ended in held) for moment, _ in held]
    assert max(under_way) == 3  # never above, and really used


@pytest.mark.slow
def test_requests_under_way_stay_within_the_cap(tmp_path):
    cap = 3
    with ScriptedServer(delay=0.02) as server:
        texts = outputs(
            start(JUDGE_IN_TWO_THREADS, tmp_path, server.base_url, n, cap, "", 60) for n in range(2)
        )
    assert "".join(texts).split() == ["12"] * 4
    assert server.peak == cap, server.peak  # never above, and really used


@pytest.mark.slow
def test_requests_per_minute_hold_across_processes(tmp_path):
    with ScriptedServer() as server:
        texts = outputs(
            start(JUDGE_IN_TWO_THREADS, tmp_path, server.base_url, n, 8, 10, 10) for n in range(2)
        )
    assert len(server.times) == 10  # the rest would have to wait for the next minute
    assert sum(map(int, "".join(texts).split())) == 10


def test_the_window_slides(tmp_path):
    times = sorted(
        moment
        for text in outputs(start(BOOK, tmp_path, "server") for _ in range(2))
        for moment in json.loads(text)
    )
    assert len(times) == 24
    assert all(later - earlier > 0.999 for earlier, later in zip(times, times[10:], strict=False))
    assert times[-1] - times[0] < 60


def test_tokens_per_minute_are_booked_as_estimated_and_corrected_to_what_was_used():
    limits = Limits("server", 8, tokens_per_minute=100, minute=2.0)

    async def spend(estimate, used):
        async with limits.call(estimate) as booking:
            booking.tokens = used
        return time.monotonic()

    async def three():
        began = time.monotonic()
        return [
            await spend(80, 10) - began,
            await spend(80, 80) - began,
            await spend(80, 1) - began,
        ]

    first, second, third = asyncio.run(three())
    assert first < second < 1.9  # corrected to 10, so 80 more fit
    assert 1.9 < third < 30


def test_a_call_larger_than_the_token_cap_goes_alone_instead_of_never():
    async def big():
        async with Limits("server", 1, tokens_per_minute=10).call(1000):
            return True

    assert asyncio.run(asyncio.wait_for(big(), 60))


def test_two_servers_do_not_share_a_cap():
    async def both():
        async with Limits("a", 1).call(1), Limits("b", 1).call(1):
            return True

    assert asyncio.run(asyncio.wait_for(both(), 60))


def test_a_dead_process_frees_its_place(tmp_path):
    hold = (
        "import asyncio, os\nfrom hf_rlhf.rewards.judges.rate_limits import Limits\n"
        "async def f():\n"
        "  async with Limits('server', 1).call(1): os._exit(0)\nasyncio.run(f())"
    )
    outputs([start(hold, tmp_path)])

    async def take():
        async with Limits("server", 1).call(1):
            return True

    assert asyncio.run(asyncio.wait_for(take(), 60))


def test_a_forked_child_neither_frees_nor_keeps_the_place_of_its_parent(tmp_path):
    hold = (
        "import asyncio, os, sys, time\nfrom hf_rlhf.rewards.judges.rate_limits import Limits\n"
        "async def f():\n"
        "  async with Limits('server', 1).call(1):\n"
        "    child = os.fork()\n"
        "    if not child: os.write(1, b'forked '); os.close(1); time.sleep(600); os._exit(0)\n"
        "    os.write(1, b'%d\\n' % child); os.read(0, 1); os._exit(0)\nasyncio.run(f())"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", hold],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    said = b""
    while not (b"forked" in said and b"\n" in said):
        said += os.read(parent.stdout.fileno(), 100)
    try:
        limits = Limits("server", 1)
        assert _Slots(limits.folder).take(1) is None
        parent.communicate(b"x")  # it dies, and its child lives on

        async def take():
            async with limits.call(1):
                return True

        assert asyncio.run(asyncio.wait_for(take(), 60))
    finally:
        os.kill(int(said.replace(b"forked ", b"")), signal.SIGKILL)


def test_places_that_another_process_holds_are_counted(tmp_path):
    folder = tmp_path / "places"
    ours, theirs = _Slots(folder), _Slots(folder)  # locks of two open files, as of two processes
    assert {theirs.take(3), ours.take(3), theirs.take(3)} == {0, 1, 2}
    assert ours.take(3) is None
    for number in list(theirs._held):
        theirs.free(number)
    time.sleep(2 * _SEARCH_INTERVAL)
    assert ours.take(3) is not None


def test_a_cap_that_cannot_be_held_is_an_error_and_nothing_is_asked(tmp_path):
    (tmp_path / f"hf-rlhf-{os.getuid()}").write_text("a file in the way")
    with ScriptedServer() as server:
        judge = OpenAIJudge("scripted", server.base_url, cache=False)
        with pytest.raises(JudgeError, match="caps.*TMPDIR"):
            asyncio.run(judge.judge([Question("quality", "a", "b")]))
    assert server.asked == []


@pytest.mark.slow
def test_a_verdict_is_paid_for_once_by_all_processes(tmp_path):
    script = JUDGE_IN_TWO_THREADS.replace("cache=False,", "").replace("{thread} ", "")
    with ScriptedServer() as server:
        outputs([start(script, tmp_path, server.base_url, "same", 8, "", 60)])
        asked = len(server.asked)
        texts = outputs(
            start(script, tmp_path, server.base_url, "same", 8, "", 60) for _ in range(2)
        )
        assert len(server.asked) == asked
    assert 12 <= asked <= 24  # two threads at the same time may both miss
    assert "".join(texts).split() == ["12"] * 4
