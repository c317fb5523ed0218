"""`hf-rlhf memory`: its report on models and run files, and what it refuses."""

import json
import re
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hf_rlhf.cli import main
from hf_rlhf.runs.known_models import known_models, run_of_model
from hf_rlhf.runs.memory_changes import largest, plan_of
from hf_rlhf.runs.sharded_memory import STRATEGIES

TINY: dict[str, Any] = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 96}
SHORT = ("--max_length", "32", "--per_device_train_batch_size", "2")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return a folder with the configuration of a small model and no weights."""
    monkeypatch.setattr("hf_rlhf.runs.memory_changes.MOST", 64)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def test_a_model_is_reported_by_strategy(tiny, tmp_path, capsys):
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
    assert "per_device_train_batch_size: 1" in text
    assert "on CPUs and on one GPU" in text


def test_the_derivation_of_a_model(tiny, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 5}))
    assert main(["memory", "--deep", tiny, *SHORT]) == 0
    text = capsys.readouterr().out
    assert "5 times a period of 1" in text
    assert "optimizer: 451 KiB, 8.00 bytes" in text


def test_a_run_file_is_reported(tiny_run, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps({"schema": 1, **tiny_run, "use_peft": False, "beta": 0.1, "evaluation": None})
    )
    assert main(["memory", str(file)]) == 0
    text = capsys.readouterr().out
    assert "reference" in text
    assert "one GPU" in text
    assert "activation_checkpointing: true" in text


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        ({}, ("--for", "8xH10"), "8xH10' is not a machine"),
        ({}, ("--max_lenth", "8"), "--max_lenth: is no setting .*max_length"),
        ({}, ("--max_length",), "expected pairs of --KEY VALUE"),
        ({}, ("--max_length", "0"), "--max_length: should be greater"),
        ({}, ("--per_device_train_batch_size", "0"), "batch_size: should be greater"),
        ({}, ("--dtype", "float99"), "--dtype: 'float99' is unknown"),
        ({}, ("--optim", "nonsense"), "--optim: should be .*not `.nonsense"),
        ({}, ("--use_peft", "maybe"), "--use_peft: should be true or false"),
        ({}, ("--bf16", "1"), "--bf16: should be true or false"),
        ({}, ("--lora_target_modules", "["), "--lora_target_modules: "),
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


def test_the_largest_pass_is_near_the_limit(tiny, monkeypatch):
    monkeypatch.setattr("hf_rlhf.runs.memory_changes.MOST", 2**11)
    run = run_of_model(tiny, {"max_length": "32"})

    def size(rows):
        return plan_of(run, STRATEGIES[0], 1, rows=rows, tokens=32).bytes

    rows = largest(run, STRATEGIES[0], 1, 3e7, tokens=32)
    assert size(rows) <= 3e7 < 1.2 * size(rows)
    assert largest(run, STRATEGIES[0], 1, 1e5, tokens=32) == 0
    long = largest(run, STRATEGIES[0], 1, 2e7, rows=1)
    assert plan_of(run, STRATEGIES[0], 1, rows=1, tokens=long).bytes <= 2e7
    assert plan_of(run, STRATEGIES[0], 1, rows=1, tokens=long * 5 // 4).bytes > 2e7
    assert largest(run, STRATEGIES[0], 1, 1e12, tokens=32) == 64


def test_no_row_is_longer_than_the_positions_of_the_model(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_rlhf.runs.memory_changes.MOST", 2**11)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "max_position_embeddings": 48}))
    run = run_of_model(tiny, {"max_length": "32"})
    assert largest(run, STRATEGIES[0], 1, 1e12, rows=1) == 48


def test_a_trainer_is_no_model(capsys):
    assert main(["memory", "dpo"]) == 2
    assert "dpo is a trainer: write `hf-rlhf memory --plugin dpo" in capsys.readouterr().err
