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

pytestmark = pytest.mark.slow

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_model(folder):
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", chat_template=TEMPLATE
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=8192,
        eos_token_id=0,
        pad_token_id=0,
        bos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    model = folder / "babbler"
    make_model(model)
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
