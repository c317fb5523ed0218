"""The whole way with real trainers on a tiny base: train, prove, merge, evaluate, push, load."""

import json
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.download import pull
from hf_rlhf.testing.hubs import use_hub
from hf_rlhf_roles.command import command
from hf_rlhf_roles.inspection import check
from hf_rlhf_roles.ledger import Ledger
from hf_rlhf_roles.server import load_roles
from hf_rlhf_roles.workspace import read_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


SMALLEST = "  max_steps: 1\n  evaluation: {rows: 2, max_new_tokens: 4}\n"
PPO = ("--max_completion_length", "8", "--rollout_batch_size", "4", "--num_ppo_epochs", "1")


def hf_rlhf(*argv, **settings):
    """Start the command line as a process of its own."""
    code = "import sys; from hf_rlhf.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen([sys.executable, "-c", code, *argv], **settings)


def wait_for(what, process, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, "it ended early"
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline") / "ws"
    assert command(["init", str(folder), "--tiny"]) == 0
    text = (folder / "workspace.yaml").read_text()
    last = "  evaluation: {rows: 4, max_new_tokens: 32}\n"
    assert last in text
    (folder / "workspace.yaml").write_text(text.replace(last, SMALLEST))
    train = ["train", "--workspace", str(folder)]
    # Killed in the middle of the second step; the same command continues.
    first = hf_rlhf("roles", *train, "--all")
    wait_for(lambda: list(folder.glob("runs/writer/sft-*/*")), first)
    first.kill()
    first.wait()
    done = (folder / "adapters" / "data_insight" / "adapter_model.safetensors").stat().st_mtime_ns
    assert command([*train, "--all"]) == 0
    again = folder / "adapters" / "data_insight" / "adapter_model.safetensors"
    assert again.stat().st_mtime_ns == done
    assert command([*train, "--role", "writer", "--stage", "ppo", *PPO]) == 0
    rows = (folder / "data" / "data_insight_sft.jsonl").read_text().splitlines()
    prompts = folder / "data" / "data_insight_prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": json.loads(row)["prompt"]}) + "\n" for row in rows)
    )
    ppo = [*train, "--role", "data_insight", "--stage", "ppo", "--data", str(prompts)]
    assert command([*ppo, *PPO]) == 0
    return folder


@pytest.mark.smoke
def test_all_stages_train_and_the_weights_of_others_stay(home):
    workspace = read_workspace(home)
    ledger = Ledger(workspace)
    good, wrong = check(workspace, ledger)
    assert wrong == []
    assert list(ledger.entries()) == [
        *("data_insight/sft", "writer/sft", "writer/dpo", "writer/reward", "writer/ppo"),
        "data_insight/ppo",
    ]
    insight = outputs(ledger, "data_insight/sft")
    assert untouched(ledger, "writer/ppo", "adapters/data_insight") == insight
    assert untouched(ledger, "data_insight/ppo", "adapters/writer") == outputs(ledger, "writer/ppo")
    assert ledger.in_use() == {
        "adapters/data_insight": "data_insight/ppo",
        "adapters/writer": "writer/ppo",
        "adapters/writer.reward": "writer/reward",
    }


def outputs(ledger, key):
    """The digests of the adapter that a step made, by file name."""
    return {Path(name).name: at for name, at in ledger.entries()[key]["outputs"].items()}


def untouched(ledger, key, folder):
    """The digests of the files in a folder while a step was trained, by file name."""
    digests = ledger.entries()[key]["notes"]["untouched"]
    return {Path(name).name: at for name, at in digests.items() if name.startswith(f"{folder}/")}


@pytest.mark.smoke
def test_each_stage_continues_the_previous_adapter(home):
    ledger = Ledger(read_workspace(home))
    starts = {key: entry["result"]["starts_from"] for key, entry in ledger.entries().items()}
    assert starts == {
        **{"data_insight/sft": None, "writer/sft": None, "writer/dpo": "sft"},
        **{"writer/reward": "sft", "writer/ppo": "dpo", "data_insight/ppo": "sft"},
    }
    # Eight tokens of a random base earn 0 in every row, of which data_insight/ppo learns nothing.
    keys = [key for key in ledger.entries() if key != "data_insight/ppo"]
    assert len({outputs(ledger, key)["adapter_model.safetensors"] for key in keys}) == 5


def test_a_merged_role_equals_base_and_adapter(home, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    out = tmp_path / "merged"
    assert command(["merge", "writer", "--workspace", str(home), "--out", str(out)]) == 0
    with ExitStack() as stack:
        chat = load_roles(stack, read_workspace(home), ["writer"])
        batch = chat.tokenizer(["Hello."], return_tensors="pt")
        with torch.inference_mode():
            adapted = chat.model(**batch).logits
            merged = AutoModelForCausalLM.from_pretrained(out).eval()(**batch).logits
    assert torch.allclose(adapted, merged, atol=1e-5)
    reward = tmp_path / "reward"
    argv = ["merge", "writer", "--reward", "--workspace", str(home), "--out", str(reward)]
    assert command(argv) == 0
    config = json.loads((reward / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    local = pytest.importorskip("hf_rlhf_local_hub", reason="needs hf-rlhf-local-hub")
    with local.serve(tmp_path_factory.mktemp("hub") / "hub", user="demo") as running:
        yield running


@pytest.fixture
def online(hub, monkeypatch):
    """This process as one whose environment names the local Hub."""
    from huggingface_hub import HfApi

    use_hub(monkeypatch, hub.url, token="any-token")
    return HfApi(endpoint=hub.url, token="any-token")


def push(home, *argv):
    base = ["--base_model", "demo/tiny", "--push_base"]
    return command(["push", "--workspace", str(home), "--prefix", "demo/team", *base, *argv])


@pytest.mark.smoke
def test_pushed_roles_load_together_as_the_index_says(home, online, tmp_path, capsys):
    assert push(home) == 0
    repos = {info.id for info in online.list_models()}
    of_roles = {f"demo/team-{name}" for name in ("data-insight", "writer", "writer-reward")}
    assert repos == {"demo/team", "demo/tiny", *of_roles}
    for name in ("team", "tiny", "team-writer"):
        pull(f"demo/{name}", tmp_path / "pulled" / name)
    card = Path(online.hf_hub_download("demo/team", "README.md", local_dir=tmp_path)).read_text()
    assert "is isolated" in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.S)
    assert 'adapter_name="data_insight"' in snippets[0]
    code = (
        "\n".join(snippets)
        + """
print(type(scorer.base_model.model).__name__, scorer.config.pad_token_id is not None)
print(tokenizer.apply_chat_template(messages, tokenize=False).count("You write for a reader"))
print(sorted(model.peft_config), model.active_adapter)
"""
    )
    env = {"HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "any-token"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "HF_ENDPOINT": online.endpoint, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [
        "LlamaForSequenceClassification True",
        "1",
        "['data_insight', 'writer'] writer",
    ]
    of_writer = online.hf_hub_download("demo/team-writer", "README.md", local_dir=tmp_path / "w")
    assert f"[`demo/tiny`]({online.endpoint}/demo/tiny)" in Path(of_writer).read_text()
    capsys.readouterr()
    commits = len(online.list_repo_commits("demo/team"))
    assert push(home) == 0
    assert capsys.readouterr().out.count("(0 new commits)") == 3
    assert len(online.list_repo_commits("demo/team")) == commits
    # Files of somebody else are left alone.
    online.upload_file(path_or_fileobj=b"mine", path_in_repo="README.md", repo_id="demo/team")
    with pytest.raises(
        PublishError, match=r"was not pushed from here, or was changed since: README\.md"
    ):
        push(home)
    assert push(home, "--overwrite") == 0


def test_eval_scores_the_role_and_its_references(home, tmp_path, capsys):
    data = str(home / "data" / "data_insight_sft.jsonl")
    out = str(tmp_path / "eval")
    argv = ["eval", "--workspace", str(home), "--data", data, "--out", out]
    assert command([*argv, "--references"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"well_formed +16 +1\.000 \(all 16 alike\)", output)
    assert "was not checked" in output
    judge = ["--judge", '{"name": "lexical"}']
    assert command([*argv, "--rows", "2", "--max_tokens", "8", *judge]) == 0
    assert "judge: lexical" in capsys.readouterr().out
    task = json.loads((tmp_path / "eval" / "results.json").read_text())["tasks"]["evidence"]
    means = task["results"]["data_insight"]["means"]
    assert len(task["rows"]["data_insight"]["ids"]) == means["total"]["n"] == 2
    assert means["well_formed"]["mean"] == 0.0, "two steps teach no form"
