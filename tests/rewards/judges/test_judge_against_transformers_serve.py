"""The protocol against a real OpenAI-compatible server, which knows nothing of schemas.

A random model babbles: no reply is a verdict, so every score must be None, and never a number.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.text_generation import OpenAIText, Text
from hf_rlhf.testing.tiny import make_tiny_policy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    model = folder / "babbler"
    make_tiny_policy(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    log = folder / "log.txt"
    with log.open("w") as sink:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        wait_until_up(f"http://127.0.0.1:{port}/health", server, log)
        yield str(model), f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def wait_until_up(url, server, log):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize("structured", [True, False])
def test_it_answers_pings_and_its_babble_is_no_verdict(served, structured):
    model, url = served
    judge = OpenAIJudge(model, url, max_tokens=16, structured=structured, max_failure_rate=1.0)
    assert "answered" in asyncio.run(judge.ping())
    questions = [Question("support", f"Alder {n}", context="Alder is in Oslo.") for n in range(3)]
    verdicts = asyncio.run(judge.judge(questions))
    assert [verdict.score for verdict in verdicts] == [None] * 3
    assert all("was not a verdict" in verdict.reason for verdict in verdicts)
    usage = judge.usage()
    assert usage["failed"] == 3
    assert usage["prompt_tokens"] > 1000
    assert usage["completion_tokens"] > 0


def test_a_wrong_path_is_named(served):
    model, url = served
    with pytest.raises(JudgeError, match="404.*/v1"):
        asyncio.run(OpenAIJudge(model, url.removesuffix("/v1") + "/api").ping())


def test_its_babble_is_text_though_one_that_does_not_end(served):
    model, url = served
    writer = OpenAIText(model, url, max_tokens=8, max_concurrency=2, cache=False)
    came = {}
    requests = ([{"role": "user", "content": f"Say {n}."}] for n in range(3))
    asyncio.run(writer.write(requests, lambda index, said: came.update({index: said})))
    assert sorted(came) == [0, 1, 2]
    assert all(isinstance(said, Text) or said.cause == "cut off" for said in came.values())
    assert writer.usage()["completion_tokens"] >= 3 * 8
