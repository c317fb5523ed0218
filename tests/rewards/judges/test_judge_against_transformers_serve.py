"""The protocol against a real server, `transformers serve`, which knows nothing of schemas.

A random model babbles: no reply is a verdict, so every score must be None, and never a number.
"""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.openai import OpenAIJudge
from hf_rlhf.rewards.judges.text_generation import OpenAIText, Text


@pytest.fixture(scope="module")
def served(tiny_policy):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(tiny_policy)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    address = ["--host", "127.0.0.1", "--port", port, "--device", "cpu"]
    server = subprocess.Popen([*command, *address], env=environment)
    yield str(tiny_policy), f"http://127.0.0.1:{port}/v1"
    server.terminate()
    server.wait(30)


@pytest.mark.slow
def test_a_server_that_starts_is_waited_for_and_its_babble_is_text_but_no_verdict(served):
    judge = OpenAIJudge(*served, max_tokens=16, max_failure_rate=1.0, patience=180)
    questions = [Question("support", f"Alder {n}", context="Alder is in Oslo.") for n in range(3)]
    verdicts = asyncio.run(judge.judge(questions))
    assert [verdict.score for verdict in verdicts] == [None] * 3
    assert all("was not a verdict" in verdict.reason for verdict in verdicts)
    assert judge.usage()["prompt_tokens"] > 1000
    assert "answered" in asyncio.run(judge.ping())
    with pytest.raises(JudgeError, match="404.*/v1"):
        asyncio.run(OpenAIJudge(served[0], served[1].replace("/v1", "/api")).ping())
    writer, came = OpenAIText(*served, max_tokens=8, cache=False), []
    requests = ([{"role": "user", "content": f"Say {n}."}] for n in range(3))
    asyncio.run(writer.write(requests, lambda index, said: came.append(said)))
    assert len(came) == 3
    assert all(isinstance(said, Text) or said.cause == "cut off" for said in came)
