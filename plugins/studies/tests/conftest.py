"""A run that works, for tests of real runs."""

from typing import Any

import pytest


@pytest.fixture
def tiny_run() -> dict[str, Any]:
    """Return a run that trains 2 steps on 4 prompts in seconds; change it to break it."""
    return {
        "plugin": "refiner_grpo",
        "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
        "use_peft": True,
        "lora_r": 4,
        "lora_target_modules": ["q_proj", "v_proj"],
        "dataset": {"name": "tiny_world", "train_rows": 8, "test_rows": 4},
        "judges": {"words": {"name": "lexical"}},
        "rewards": [
            {"name": "refiner_reward", "label": "refiner"},
            {"name": "answer_format", "label": "format", "weight": 0},
        ],
        "evaluation": {"rows": 4, "batch_size": 4, "samples": 2},
        "num_generations": 2,
        "prompts_per_step": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": 2,
        "logging_steps": 1,
        "save_steps": 1,
        "loss_type": "bnpo",
        "beta": 0.001,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
    }
