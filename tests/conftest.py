"""What several test files share: components that misbehave, and a run that works."""

import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from hf_rlhf import registry


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Offer objects as components for the length of a test: offer("rewards", name=object)."""
    module = types.ModuleType("offered_by_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    real = registry.entry_points
    added: list[EntryPoint] = []

    class Package:
        name, version, requires = "acme", "1.0", ()

    def entry_points(group: str) -> list[EntryPoint]:
        return [*real(group=group), *(point for point in added if point.group == group)]

    monkeypatch.setattr(registry, "entry_points", entry_points)

    def _offer(kind: str, **components: Any) -> None:
        for name, component in components.items():
            setattr(module, name, component)
            point = EntryPoint(name, f"{module.__name__}:{name}", f"hf_rlhf.{kind}")
            vars(point).update(dist=Package())
            added.append(point)

    return _offer


@pytest.fixture
def tiny_run(tmp_path: Any) -> dict[str, Any]:
    """Return a run that trains 2 steps on 4 prompts in seconds; change it to break it."""
    return {
        "plugin": "refiner_grpo",
        "model_name_or_path": "package://hf_rlhf_refiner/tiny_policy",
        "output_dir": str(tmp_path / "run"),
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
