"""From a reward model to its report, and to a run that is refused or carries the report."""

import json

import pytest

from hf_rlhf import dry_run, train
from hf_rlhf.config import RunFile
from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.data import TrainedRows
from hf_rlhf.errors import ConfigError
from hf_rlhf.hub.layout import expected_files
from hf_rlhf.storage import load_record
from hf_rlhf_lab.command import rewards

TASTES = {"name": "tastes", "train_rows": 64, "test_rows": 40}
DATA = {"name": "preference", "path": "rows.jsonl", "test_rows": 0}
CPU = {"use_cpu": True, "bf16": False, "dataloader_pin_memory": False}


@pytest.mark.slow
def test_ppo_trains_only_on_the_reward_model_of_its_report(tmp_path, monkeypatch, pictures):
    monkeypatch.chdir(tmp_path)
    model = {"model_name_or_path": "package://hf_rlhf_classic/tiny_sft", **CPU}
    preferences = {**TASTES, "form": "preference"}
    train("reward", **model, dataset=preferences, max_steps=1, output_dir="reward")
    values = {
        **model,
        "plugin": "ppo",
        "dataset": {**TASTES, "form": "prompts"},
        "rewards": [{"name": "known_utility", "label": "utility", "weight": 0}],
        "reward_model_path": "reward/merged",
        "reward_validation": {"report": "report", "require": {"accuracy": 0.99}},
        **{"max_steps": 1, "rollout_batch_size": 8, "num_mini_batches": 2},
        **{"max_completion_length": 8, "use_peft": True, "output_dir": "ppo"},
    }
    (tmp_path / "ppo.yaml").write_text(RunFile.from_mapping(values).to_yaml())
    data = [{"prompt": p, "chosen": "red hat", "rejected": f"song {p}"} for p in map(str, range(9))]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, data)))
    rewards(["validate", "ppo.yaml", "--data", "pairs.jsonl", "--out", "report"])
    identity = json.loads((tmp_path / "report/validation.json").read_text())["reward"]
    assert "model.safetensors" in identity["identity"]["arguments"]["model"]
    # The report on the run folder of the model is one of the same reward.
    rewards(["validate", "reward", "--out", "report"])
    assert json.loads((tmp_path / "report/validation.json").read_text())["reward"] == identity
    with pytest.raises(
        ConfigError, match=r"accuracy of reward_model .* \(required: at least 0\.99"
    ):
        train(config="ppo.yaml")
    section = {**values["reward_validation"], "enforce": False}
    train(config="ppo.yaml", reward_validation=section)
    met = {**section, "require": {"repeats": 0.5}}
    plan = dry_run(config="ppo.yaml", reward_validation=met, output_dir="new")[0]
    texts = [each["text"] for each in plan["findings"] if each["check"] == "validation"]
    assert "(required: at most 0.5 by the bound farther from 0)" in texts[1]
    record = load_record("ppo")
    assert [each.met for each in record.reward_validation.requirements] == [False]
    card = (tmp_path / "ppo/README.md").read_text()
    assert "## Validation of the reward" in card
    assert "at least 0.99 by the lower bound): **not met**" in card
    picture = "reward_validation/reward_model/validation.png"
    assert f"]({picture})" in card
    spec = PublishSpec(repo_id="you/ppo", base_model="you/base")
    published = [path for _, path in expected_files(tmp_path / "ppo", record, spec, None)]
    assert picture in published
    other = {**values, "reward_model_path": "package://hf_rlhf_classic/tiny_sft"}
    (tmp_path / "ppo.yaml").write_text(RunFile.from_mapping(other).to_yaml())
    with pytest.raises(ConfigError, match=r"another version of it.*model.safetensors changed"):
        train(config="ppo.yaml")


@pytest.mark.slow
def test_a_reward_model_keeps_the_rows_of_every_training_beside_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = {"model_name_or_path": "package://hf_rlhf_classic/tiny_sft", "max_steps": 1, **CPU}
    for number, name in enumerate(("first", "second")):
        rows = [
            {"prompt": f"p{n}", "chosen": f"yes {n}", "rejected": f"no {n}"}
            for n in range(10 * number, 10 * number + 10)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        lora = {"use_peft": True, "lora_target_modules": ["q_proj"]} if number else {}
        train("reward", **model, **lora, dataset=DATA, evaluation=None, output_dir=name)
        model["model_name_or_path"] = "first/merged"
    folders = [tmp_path / "first/merged", tmp_path / "second/merged", tmp_path / "second/adapter"]
    counts = [len(TrainedRows.read(folder).prompts) for folder in folders]
    assert counts == [10, 20, 20]
    assert all(TrainedRows.read(folder).complete for folder in folders)
    assert rewards(["validate", "second", "--data", "rows.jsonl"]) == 1
    report = json.loads((tmp_path / "evals/validation/validation.json").read_text())
    assert "10 of 10 prompts" in report["checks"][-1]["summary"]
    for folder in folders:
        (folder / "trained_on.json").unlink()
    (tmp_path / "rows.jsonl").write_text(json.dumps({**rows[0], "prompt": "another"}))
    rewards(["validate", "second", "--data", "rows.jsonl"])
    report = json.loads((tmp_path / "evals/validation/validation.json").read_text())
    assert report["checks"][-1]["verdict"] == "not measurable"
