"""Trainers that learn from columns, from the run file to the card: SFT, a reward model, DPO."""

import json
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.train import train

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(offer: Any, tiny_policy: Any, tmp_path: Path) -> Any:
    """Return a function that trains one of the trainers for two steps, and returns its record."""
    from tests import columns_trainers as ours

    offer(
        "trainers",
        plain_sft=ours.ColumnsSFT,
        plain_reward=ours.ColumnsReward,
        plain_dpo=ours.ColumnsDPO,
    )
    offer("datasets", demonstrations=ours.demonstrations, pairs=ours.pairs)

    def run(plugin: str, dataset: str, **settings: Any) -> dict[str, Any]:
        return train(
            config={
                "plugin": plugin,
                "dataset": {"name": dataset},
                "model_name_or_path": str(tiny_policy),
                "output_dir": str(tmp_path / plugin),
                "evaluation": {"rows": 4, "samples": 2, "max_new_tokens": 8},
                **{"max_steps": 2, "logging_steps": 1, "save_steps": 1, "learning_rate": 1e-2},
                **{"per_device_train_batch_size": 4, "use_cpu": True, "bf16": False},
                **{"activation_checkpointing": False, "dataloader_pin_memory": False},
                **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["all-linear"]},
                **settings,
            }
        )

    return run


def test_sft(trained, tmp_path):
    record = trained("plain_sft", "demonstrations")
    folder = tmp_path / "plain_sft"
    assert record["evaluation"]["difference"]["loss"]["n"] == 4
    assert record["training"]["report"] == {"Rows": {"trained on": 8}}
    print((folder / "README.md").read_text())


def test_reward(trained, tmp_path):
    record = trained("plain_reward", "pairs")
    print((tmp_path / "plain_reward" / "README.md").read_text())


def test_dpo(trained, tmp_path):
    record = trained("plain_dpo", "pairs", evaluation=None)
    print((tmp_path / "plain_dpo" / "README.md").read_text())
