"""The monitor in real trainings: a planted hack is stopped, what is healthy is not."""

import pytest

from hf_rlhf import load_record, train
from hf_rlhf.errors import ConfigError, DriftError
from hf_rlhf.storage.checkpoints import valid_checkpoints

pytestmark = pytest.mark.slow

UTILITY = {"name": "known_utility", "label": "utility", "weight": 0}
GRPO = {
    "schema": 1,
    "plugin": "grpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "use_peft": True,
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "lora_target_modules": ["all-linear"],
    "dataset": {"name": "tastes", "form": "prompts", "train_rows": 512, "test_rows": 20},
    # Repeating one word pays, and word salad costs nothing.
    "rewards": [
        {"name": "known_utility", "label": "proxy", "style_weight": 0, "saturating": False},
        UTILITY,
    ],
    "monitor": {"gold": "utility", "every": 2, "window": 2},
    "max_steps": 24,
    "prompts_per_step": 16,
    "num_generations": 4,
    "per_device_train_batch_size": 64,
    "max_completion_length": 16,
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
    "logging_steps": 1,
    "save_steps": 4,
    "save_total_limit": 1,
    "seed": 1,
}


def signals(folder):
    monitor = load_record(folder).training.monitor
    return monitor.measurements, monitor.warnings


def test_a_planted_hack_is_stopped_goes_on_when_told_and_a_kill_changes_no_look(tmp_path):
    folder = tmp_path / "hacked"
    with pytest.raises(DriftError, match="'utility'"):
        train(config=GRPO, output_dir=str(folder))
    record = load_record(folder)
    stopped = record.training.monitor.stopped_at
    assert record.status == "interrupted"
    assert record.training.steps == stopped < 24
    names = [path.name for path in valid_checkpoints(folder / "checkpoints")]
    assert names[-1] == f"checkpoint-{stopped}"
    assert int(names[0].partition("-")[2]) <= record.training.monitor.clean_step
    card = (folder / "README.md").read_text()
    assert "The run was stopped there." in card

    with pytest.raises(ConfigError, match=f"stopped this run at step {stopped}"):
        train(config=GRPO, output_dir=str(folder))
    never = {**GRPO, "monitor": {**GRPO["monitor"], "stop_on": "never"}}
    train(config=never, output_dir=str(folder))
    train(config=never, output_dir=str(tmp_path / "whole"))
    assert load_record(folder).training.steps == 24
    measurements, warnings = signals(folder)
    others, their_warnings = signals(tmp_path / "whole")
    assert measurements == others
    assert [{**warning, "stopped": False} for warning in warnings] == their_warnings
