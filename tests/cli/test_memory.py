"""`hf-rlhf memory`: its report on models and run files, and what it refuses."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_rlhf.cli import main
from hf_rlhf.runs import memory_changes
from hf_rlhf.runs.known_models import known_models, run_of_model
from hf_rlhf.runs.memory_changes import largest
from hf_rlhf.runs.sharded_memory import STRATEGIES

TINY: dict[str, Any] = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1}
TINY |= {"num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 96}
SHORT = ("--max_length", "32", "--per_device_train_batch_size", "2")


@pytest.fixture
def tiny(tmp_path):
    """Return a folder with the configuration of a small model and no weights."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def test_a_model_is_reported_by_strategy(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory_changes, "largest", lambda *_, **__: 5)
    picture = tmp_path / "memory.png"
    assert main(["memory", tiny, "--for", "16xL4", "--picture", str(picture), *SHORT]) == 0
    text = capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = {line[:7].strip(): line for line in text.splitlines()}
    for name in ("DDP", "ZeRO-1", "ZeRO-3", "FSDP2 grad/op", "FSDP2 hybrid"):
        assert name in lines["MiB on"]
    assert lines["L4 (22."].split("GiB)")[1].split() == ["fits"] * 7
    assert "Fewest devices: 1 x L4, DDP" in text
    assert "2 x 32 tokens, checkpointed, computed in bfloat16" in text
    assert "5 rows of 32 tokens, or 2 of 5" in text
    assert "per_device_train_batch_size: 1" in text
    assert "on CPUs and on one GPU" in text


def test_a_run_file_is_derived(tiny_run, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    settings = {"use_peft": False, "beta": 0.1, "evaluation": None, "max_completion_length": 8}
    file.write_text(json.dumps({"schema": 1, **tiny_run, **settings}))
    assert main(["memory", "--deep", str(file)]) == 0
    text = capsys.readouterr().out
    assert "\nreference: " in text
    assert "times a period of 1" in text
    assert ", 8.00 bytes for each trained parameter" in text


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        ({}, ("--for", "8xH10"), "8xH10' is not a machine"),
        ({}, ("--max_lenth", "8"), "--max_lenth .*: is no setting .*max_length"),
        ({}, ("--max_length", "0"), "--max_length .*: should be greater"),
        ({}, ("--dtype", "float99"), "--dtype .*: 'float99' is unknown"),
        ({}, ("--use_peft", "maybe"), "--use_peft .*: should be true or false"),
        ({"vocab_size": 0}, (), "has no vocab_size, .*Add them to its config.json"),
        ({"model_type": "t5"}, (), "is an encoder-decoder .t5., .*Use a decoder"),
    ],
)
def test_what_cannot_be_planned_is_refused(tiny, tmp_path, config, words, message, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **config}))
    assert main(["memory", tiny, *SHORT, *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_an_unknown_model_is_refused(tmp_path, capsys):
    assert main(["memory", str(tmp_path / "none")]) == 2
    assert re.search("no run file, and no model.*Llama-3.1-8B", capsys.readouterr().err)
    assert main(["memory"]) == 2
    assert "needs a run file, a model or --plugin" in capsys.readouterr().err


@pytest.mark.parametrize("name", known_models())
def test_known_models_have_their_published_size(name):
    known = known_models()[name]
    assert known["source"].endswith(f"{name}/blob/main/config.json")
    config = dict(known["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config)
        )
    assert sum(each.numel() for each in model.parameters()) == known["parameters"]


def test_the_largest_pass_is_near_the_limit(tiny, tmp_path, monkeypatch):
    tried = []

    def plan(*_, rows, tokens):
        tried.append(rows)
        return SimpleNamespace(bytes=100 + rows * tokens)

    monkeypatch.setattr(memory_changes, "MOST", 2**11)
    monkeypatch.setattr(memory_changes, "plan_of", plan)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "max_position_embeddings": 48}))
    run = run_of_model(tiny)
    assert 43 / 1.1 < largest(run, STRATEGIES[0], 1, 1500, tokens=32) <= 43
    assert len(tried) < 9
    assert largest(run, STRATEGIES[0], 1, 100, tokens=32) == 0
    assert largest(run, STRATEGIES[0], 1, 1e9, tokens=32) == 64
    assert largest(run, STRATEGIES[0], 1, 1e9, rows=1) == 48, "its positions"


def test_a_trainer_is_no_model(capsys):
    assert main(["memory", "dpo"]) == 2
    assert "dpo is a trainer: write `hf-rlhf memory --plugin dpo" in capsys.readouterr().err
