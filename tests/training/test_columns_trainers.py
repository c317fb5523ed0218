"""Trainers that learn from columns, from the run file to the card: SFT, a reward model, DPO.

And a LoRA that one of them trained, continued by another.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.data import TrainedRows
from hf_rlhf.errors import ConfigError
from hf_rlhf.models.fingerprint import read_identity
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.testing.offering import offering
from hf_rlhf.testing.tiny import make_tiny_policy

Train = Callable[..., dict[str, Any]]
RUN = {
    **{"max_steps": 2, "logging_steps": 1, "save_steps": 1, "learning_rate": 1e-2},
    **{"per_device_train_batch_size": 4, "use_cpu": True, "bf16": False, "report_to": "none"},
    **{"activation_checkpointing": False, "dataloader_pin_memory": False},
    **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    "evaluation": {"rows": 4, "samples": 2, "max_new_tokens": 8},
}


@pytest.fixture(scope="module", autouse=True)
def offered() -> Any:
    """Offer the trainers and their data to every test here."""
    from tests import columns_trainers as ours

    trainers = {
        "plain_sft": ours.ColumnsSFT,
        "plain_reward": ours.ColumnsReward,
        "plain_dpo": ours.ColumnsDPO,
    }
    datasets = {"demonstrations": ours.demonstrations, "pairs": ours.pairs}
    with offering({"trainers": trainers, "datasets": datasets}):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are, beside their base."""
    found = tmp_path_factory.mktemp("columns")
    make_tiny_policy(found / "base")
    return found


def config(folder: Path, plugin: str, name: str, **settings: Any) -> dict[str, Any]:
    dataset = "demonstrations" if plugin == "plain_sft" else "pairs"
    return {
        "plugin": plugin,
        "dataset": {"name": dataset},
        "model_name_or_path": str(folder / "base"),
        "output_dir": str(folder / name),
        **RUN,
        **settings,
    }


@pytest.fixture(scope="module")
def sft(folder: Path) -> RunRecord:
    return train(config=config(folder, "plain_sft", "sft"))


@pytest.fixture(scope="module")
def reward(folder: Path) -> RunRecord:
    return train(config=config(folder, "plain_reward", "reward"))


def problems(run: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_run(RunFile.from_mapping(run, name="my.yaml"))
    return "\n".join(str(problem) for problem in caught.value.problems)


def card(folder: Path) -> str:
    return (folder / "README.md").read_text()


def section(text: str, title: str) -> str:
    if f"<summary>{title}</summary>" in text:
        return text.split(f"<summary>{title}</summary>\n")[1].split("\n</details>")[0]
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_columns_that_the_dataset_lacks_are_named(folder):
    run = config(folder, "plain_dpo", "x") | {"dataset": {"name": "demonstrations"}}
    assert (
        "dataset: trainer 'plain_dpo' needs the columns chosen, prompt, rejected; demonstrations "
        "has prompt, completion in 'train', so chosen, rejected are missing."
    ) in problems(run)


def test_an_adapter_writes_the_rows_that_it_rejects_beside_the_run(folder, offer):
    from tests.columns_trainers import demonstrations

    def strict(rejected_rows: Path | None = None):
        seen.append(rejected_rows)
        return demonstrations()

    seen: list[Path | None] = []
    offer("datasets", strict=strict)
    run = config(folder, "plain_sft", "x") | {"dataset": {"name": "strict"}}
    resolve_run(RunFile.from_mapping(run))
    assert seen.pop() == folder / "x" / "rejected_rows.jsonl"
    # Nothing is rewritten where a run has begun: it goes on, or another one is refused.
    (folder / "x").mkdir()
    (folder / "x" / "run.json").touch()
    resolve_run(RunFile.from_mapping(run))
    assert seen == [None]
    run["dataset"]["rejected_rows"] = "mine.jsonl"
    assert "rejected_rows: is set by the run itself" in problems(run)


@pytest.mark.slow
def test_sft_is_measured_shown_and_told(folder, sft):
    assert sft.evaluation.difference["loss"].n == 4
    assert sft.evaluation.sampling == {}
    assert [one.stage for one in sft.samples] == ["before"] * 2 + ["after"] * 2
    assert sft.training.report == {"Rows": {"trained on": 8}}
    text = card(folder / "sft")
    assert "| `loss` |" in section(text, "Results")
    assert "`total`" not in section(text, "Results")
    assert "None: the run file names no reward" in section(text, "Reward")
    during = section(text, "During training")
    assert "| `entropy` |" in during
    assert "Rows, reported by the trainer:" in during
    assert "| trained on | 8 |" in during
    assert "(training_curves.png)" in during
    assert "reward none" not in text
    assert "revision" not in text.split("## How to load")[0]  # a folder has none
    assert (folder / "sft" / "adapter" / "tokenizer_config.json").exists()
    assert (folder / "sft" / "training_curves.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_reward_model_is_one(folder, reward):
    from transformers import AutoModelForSequenceClassification

    assert reward.model.class_name == "LlamaForSequenceClassification"
    assert reward.model.num_labels == 1
    assert reward.evaluation.difference["margin"].mean > 0
    assert reward.samples == []
    assert "lora_task_type" not in reward.defaults
    loaded = AutoModelForSequenceClassification.from_pretrained(folder / "reward" / "merged")
    assert loaded.config.num_labels == 1
    text = card(folder / "reward")
    assert "pipeline_tag: text-classification" in text
    assert "by reward modelling (plugin `plain_reward`)" in text
    assert "classifies text and generates none" in section(text, "Sample completions")
    load = section(text, "How to load")
    assert "AutoModelForCausalLM" not in load
    snippet = (
        load.split("```python")[2].split("```")[0].replace('"BASE"', f"{str(folder / 'base')!r}")
    )
    snippet = snippet.replace('"."', f"{str(folder / 'reward')!r}")
    made: dict[str, Any] = {}
    exec(snippet, made)  # the card's own
    with torch.inference_mode():
        ids = made["tokenizer"]("4 + 1 = 5", return_tensors="pt")
        torch.testing.assert_close(made["model"](**ids).logits, loaded(**ids).logits)


@pytest.mark.slow
@pytest.mark.smoke
def test_a_reward_model_is_published_and_pulled(folder, reward, tmp_path, monkeypatch):
    from transformers import AutoModelForSequenceClassification

    local_hub = pytest.importorskip("hf_rlhf_local_hub")
    from hf_rlhf.hub.download import pull
    from hf_rlhf.hub.publishing import publish

    with local_hub.serve(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_TOKEN", "any-token-will-do")
        files = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        publish(folder / "reward", repo_id="demo/rm", base_model="demo/base", push_base=True)
        pull("demo/rm", tmp_path / "pulled")
        from hf_rlhf.models.loading import find_adapter

        adapter = find_adapter("demo/rm")
    identity = read_identity(adapter)
    assert identity is not None
    assert (identity["base"], adapter.name) == ("demo/base", "adapter")
    # Of somebody's repository nothing but the adapter and its tokenizer is fetched.
    assert sorted(path.name for path in adapter.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "base_identity.json",
        "chat_template.jinja",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert identity["fingerprint"] == reward.model.identity["fingerprint"]
    assert TrainedRows.read(tmp_path / "pulled") == TrainedRows.read(folder / "reward" / "adapter")
    pulled = AutoModelForSequenceClassification.from_pretrained(tmp_path / "pulled")
    assert pulled.config.num_labels == 1
    assert "base_model: demo/base" in card(tmp_path / "pulled")


@pytest.mark.slow
def test_dpo_continues_the_adapter_of_sft_and_keeps_no_reference(folder, sft):
    settings = {"adapter": str(folder / "sft"), "evaluation": None}
    run = config(folder, "plain_dpo", "dpo", **settings)
    record = train(config=run)
    out = folder / "dpo" / "adapter"
    assert not (out / "ref").exists()
    assert (folder / "dpo" / "checkpoints" / "checkpoint-2" / "ref").exists()
    assert read_identity(out) == read_identity(folder / "sft" / "adapter")
    before = load_file(folder / "sft" / "adapter" / "adapter_model.safetensors")
    after = load_file(out / "adapter_model.safetensors")
    assert before.keys() == after.keys()
    change = max((before[name] - after[name]).abs().max() for name in before)
    assert 0 < change < 0.1  # two steps from where it was, and not from a new start
    assert record.training.history[0]["loss"] == pytest.approx(0.693, abs=1e-3)
    assert record.model.continues["adapter"] == str(folder / "sft")
    assert "| Continues | the adapter `" in card(folder / "dpo")


@pytest.mark.slow
def test_before_is_measured_with_the_adapter_that_is_continued(folder, sft):
    run = config(folder, "plain_sft", "sft_more", adapter=str(folder / "sft" / "adapter"))
    del run["lora_r"], run["lora_target_modules"]
    record = train(config=run)
    before, ended = record.evaluation.before, sft.evaluation.after
    assert before["loss"].mean == pytest.approx(ended["loss"].mean, rel=1e-5)
    assert record.model.adapter["r"] == 4
    # ModelConfig's own defaults are not those of the adapter that is continued.
    assert not [key for key in record.defaults if key.startswith("lora_")]
    assert not (folder / "sft_more" / ".start").exists()


def adapter_of(folder: Path, **changes: Any) -> Path:
    """Return a copy of the adapter that SFT trained, with its configuration changed."""
    import shutil

    out = folder / f"changed_{len(list(folder.iterdir()))}"
    shutil.copytree(folder / "sft" / "adapter", out)
    path = out / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return out


@pytest.mark.slow
def test_an_adapter_that_cannot_be_continued_is_refused_before_weights_load(folder, sft):
    def said(adapter: Path | str, **settings: Any) -> str:
        return problems(config(folder, "plain_sft", "x", adapter=str(adapter), **settings))

    good = folder / "sft"
    assert re.search(r"adapter: is set, and the run trains all weights", said(good, use_peft=False))
    assert re.search(r"lora_r: is 8, and the adapter that is continued has 4", said(good, lora_r=8))
    assert "adapter_revision: is set without" in problems(
        config(folder, "plain_sft", "x", adapter_revision="v1")
    )
    assert "expected two numbers, r above 0" in said(adapter_of(folder, r="64"))
    listed = adapter_of(folder)
    (listed / "adapter_config.json").write_text("[]")
    assert "holds list, not a mapping" in said(listed)
    assert "peft_type is 'IA3'" in said(adapter_of(folder, peft_type="IA3"))
    assert "without its head" in said(adapter_of(folder, task_type="SEQ_CLS"))
    assert "is not an adapter: it has no adapter_config.json" in said(folder / "base")
    other = make_tiny_policy(folder / "other_base", seed=3)
    assert re.search(
        r"was made for another base, .*base': its fingerprint",
        said(good, model_name_or_path=str(other)),
    )
