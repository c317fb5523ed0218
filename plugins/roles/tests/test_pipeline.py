"""The whole way with real trainers on a tiny base: train, prove, merge, evaluate, push, load."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_rlhf.record import load_record
from hf_rlhf_roles.command import command
from hf_rlhf_roles.engine import Engine, Sampling
from hf_rlhf_roles.guard import seal_folder
from hf_rlhf_roles.inspection import check
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.workspace import read_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
HELLO = [{"role": "user", "content": "Hello."}]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "ws"
    assert command(["init", str(folder), "--tiny"]) == 0
    assert command(["train", "--workspace", str(folder), "--all", "--max_steps", "2"]) == 0
    small = ["--max_completion_length", "8", "--rollout_batch_size", "4", "--max_steps", "2"]
    ppo = ["train", "--workspace", str(folder), "--role", "writer", "--stage", "ppo", *small]
    assert command(ppo) == 0
    return folder


def test_all_stages_train_and_the_weights_of_others_stay(home):
    workspace = read_workspace(home)
    ledger = Ledger.of(workspace)
    good, wrong = check(workspace, ledger)
    assert wrong == []
    assert list(ledger.steps) == [
        *("data_insight/sft", "writer/sft", "writer/dpo", "writer/reward", "writer/ppo")
    ]
    insight = seal_folder(home / ledger.steps["data_insight/sft"]["adapter"])
    assert insight == seal_folder(home / "adapters" / "data_insight")
    assert ledger.steps["writer/ppo"]["untouched"]["adapters/data_insight"] == insight
    assert ledger.current == {
        "adapters/data_insight": "data_insight/sft",
        "adapters/writer": "writer/ppo",
        "adapters/writer.reward": "writer/reward",
    }


def test_each_stage_goes_on_from_the_one_before(home):
    ledger = Ledger.of(read_workspace(home))
    starts = {key: entry["starts_from"] for key, entry in ledger.steps.items()}
    assert starts == {
        **{"data_insight/sft": None, "writer/sft": None, "writer/dpo": "sft"},
        **{"writer/reward": "sft", "writer/ppo": "dpo"},
    }
    seals = [entry["seal"]["adapter_model.safetensors"] for entry in ledger.steps.values()]
    assert len(set(seals)) == 5


def test_the_card_of_an_isolated_role_tells_of_no_other(home):
    ledger = Ledger.of(read_workspace(home))
    for name in ("README.md", "run.json", "config.yaml"):
        text = (home / ledger.steps["data_insight/sft"]["run"] / name).read_text()
        assert "writer_" not in text
        assert "writer/" not in text
    record = load_record(home / ledger.steps["data_insight/sft"]["run"])
    assert record["status"] == "finished"
    assert record["evaluation"]["after"], "the held-out loss is on the card"


def test_a_merged_role_says_what_the_adapter_says(home, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    out = tmp_path / "merged"
    assert command(["merge", "writer", "--workspace", str(home), "--out", str(out)]) == 0
    engine = Engine(read_workspace(home))
    batch = engine.encode("writer", HELLO, 1)
    with torch.inference_mode():
        engine.model.set_adapter("writer")
        adapted = engine.model(**batch).logits
        merged = AutoModelForCausalLM.from_pretrained(out).eval()(**batch).logits
    assert torch.allclose(adapted, merged, atol=1e-5)
    reward = tmp_path / "reward"
    argv = ["merge", "writer", "--reward", "--workspace", str(home), "--out", str(reward)]
    assert command(argv) == 0
    config = json.loads((reward / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]


def test_eval_scores_the_role_and_its_references(home, tmp_path, capsys):
    data = str(home / "data" / "data_insight_sft.jsonl")
    out = str(tmp_path / "eval.json")
    argv = ["eval", "--workspace", str(home), "--data", data, "--out", out]
    assert command([*argv, "--references"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"well_formed +1\.000 +\[1\.000, 1\.000\] +16", said)
    assert "equal words only" in said
    assert command([*argv, "--rows", "2", "--max_tokens", "8"]) == 0
    told = json.loads((tmp_path / "eval.json").read_text())
    assert len(told["rows"]) == told["means"]["total"]["n"] == 2
    assert told["means"]["well_formed"]["mean"] == 0.0, "two steps teach no form"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    local = pytest.importorskip("hf_rlhf_local_hub", reason="needs hf-rlhf-local-hub")
    with local.serve(tmp_path_factory.mktemp("hub") / "hub", user="demo") as running:
        yield running


@pytest.fixture
def online(hub, monkeypatch):
    """This process as one whose environment names the local Hub."""
    from huggingface_hub import constants

    import hf_rlhf_roles.collection as collection
    from hf_rlhf.hub import connect

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "any-token")
    monkeypatch.setattr(collection, "connect", lambda: connect(hub.url, "any-token"))
    return hub


def push(home, *argv):
    base = ["--base_model", "demo/tiny", "--push_base"]
    return command(["push", "--workspace", str(home), "--prefix", "demo/team", *base, *argv])


def test_pushed_roles_load_together_as_the_index_says(home, online, tmp_path, capsys):
    from huggingface_hub import HfApi

    assert push(home) == 0
    api = HfApi(endpoint=online.url, token="any-token")
    repos = sorted(info.id for info in api.list_models())
    assert repos == [
        *("demo/team", "demo/team-data-insight", "demo/team-writer", "demo/team-writer-reward"),
        "demo/tiny",
    ]
    index = api.hf_hub_download("demo/team", "README.md", local_dir=tmp_path)
    card = Path(index).read_text()
    snippet = re.search(r"```python\n(.*?)```", card, re.S)[1]
    assert 'adapter_name="data_insight"' in snippet
    code = snippet + "\nprint(sorted(model.peft_config), model.active_adapter)\n"
    env = {"HF_ENDPOINT": online.url, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "any-token"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "['data_insight', 'writer'] writer", done.stderr
    assert "is isolated" in card
    capsys.readouterr()
    assert push(home) == 0
    assert capsys.readouterr().out.count("(0 new commits)") == 3


def test_an_index_of_somebody_else_is_left_alone(home, online):
    from huggingface_hub import HfApi

    from hf_rlhf.errors import PublishError

    api = HfApi(endpoint=online.url, token="any-token")
    push(home)
    api.upload_file(path_or_fileobj=b"mine", path_in_repo="README.md", repo_id="demo/team")
    with pytest.raises(PublishError, match=r"did not push, or that was changed since: README\.md"):
        push(home)
    assert push(home, "--overwrite") == 0


def test_served_over_http_to_the_openai_client(home):
    import socket
    import time
    import urllib.error
    import urllib.request

    from openai import OpenAI

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    code = "import sys; from hf_rlhf.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = ["roles", "serve", "--workspace", str(home), "--port", str(port)]
    server = subprocess.Popen([sys.executable, "-c", code, *argv])
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except (urllib.error.URLError, ConnectionError):
                assert server.poll() is None
                time.sleep(1)
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
        assert [model.id for model in client.models.list()] == ["data_insight", "writer"]
        for role in ("writer", "data_insight"):
            asked = {"model": role, "messages": HELLO, "max_tokens": 5, "temperature": 0}
            whole = client.chat.completions.create(**asked).choices[0].message.content
            pieces = client.chat.completions.create(**asked, stream=True)
            assert "".join(one.choices[0].delta.content or "" for one in pieces) == whole
            engine = Engine(read_workspace(home), only=[role])
            assert engine.reply(role, HELLO, Sampling(5)).text == whole
    finally:
        server.terminate()
        server.wait(30)
