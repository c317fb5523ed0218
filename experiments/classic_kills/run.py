"""Kill runs of the classic stages with SIGKILL at random moments, go on, and compare.

As in `experiments/kill_matrix`, whose code this uses. Exits with 1 if any run differs.
"""

import runpy
import sys
from pathlib import Path
from typing import Any

MATRIX = runpy.run_path(str(Path(__file__).parents[1] / "kill_matrix" / "run.py"))

LORA = {
    "use_peft": True,
    "lora_r": 4,
    "lora_dropout": 0.1,
    "lora_target_modules": ["q_proj", "v_proj"],
}
TASTES = {"name": "tastes", "train_rows": 64, "test_rows": 16}
PAIRS = {"dataset": {**TASTES, "form": "preference", "margin": False}}
COMMON = {
    "schema": 1,
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "evaluation": {"rows": 8, "batch_size": 8, "samples": 2, "max_new_tokens": 8},
    "per_device_train_batch_size": 8,
    "max_steps": 12,
    "save_steps": 3,
    "save_total_limit": 2,
    "logging_steps": 2,
    "learning_rate": 1e-3,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
}
UTILITY = [{"name": "known_utility", "label": "utility"}]
PPO = {
    **{"plugin": "ppo", "dataset": {**TASTES, "form": "prompts"}, "rewards": UTILITY},
    **{"num_mini_batches": 2, "num_ppo_epochs": 2, "max_completion_length": 8},
    **{"score_normalisation": "running", "kl_target": 0.5, "kl_horizon": 100.0},
}
CELLS: dict[str, dict[str, Any]] = {
    "sft": {"plugin": "sft", "dataset": {**TASTES, "form": "sft"}, "max_length": 128},
    "sft, packed, LoRA": {
        **{"plugin": "sft", "dataset": {**TASTES, "form": "sft"}, "max_length": 128},
        **{"packing": True, "per_device_train_batch_size": 1, **LORA},
    },
    "reward": {"plugin": "reward", **PAIRS},
    "reward, LoRA": {"plugin": "reward", **PAIRS, **LORA},
    "dpo": {"plugin": "dpo", **PAIRS},
    "dpo, continued LoRA": {"plugin": "dpo", **PAIRS, "use_peft": True, "adapter": "ADAPTER"},
    "grpo, LoRA": {
        **{"plugin": "grpo", "dataset": {**TASTES, "form": "prompts"}, **LORA},
        **{"num_generations": 4, "max_completion_length": 8, "beta": 0.01},
        "rewards": UTILITY,
    },
    "ppo, LoRA, value of its own": {**PPO, **LORA, "lora_dropout": 0.0, "value": "own_adapter"},
    "ppo, full": {**PPO, "reference_model_path": COMMON["model_name_or_path"]},
    "iterative dpo, LoRA": {
        **{"plugin": "iterative_dpo", "dataset": {**TASTES, "form": "prompts"}, **LORA},
        **{"rewards": UTILITY, "buffer": "rolling2", "max_completion_length": 8, "max_length": 64},
        **{"iterations": 4, "prompts_per_iteration": 16, "measured_prompts": 8},
    },
}


def main() -> int:
    """Run what the command line asks for; print a table."""
    chosen = MATRIX["options"](__doc__).parse_args()
    preload()
    adapter = {"adapter": str(chosen.folder / "01" / "whole" / "adapter")}  # that of cell 1
    cells = [
        ({"run": name}, {**COMMON, **cell, **(adapter if "adapter" in cell else {})})
        for name, cell in CELLS.items()
    ]
    status: int = MATRIX["measure_cells"](chosen, cells, line)
    return status


def preload() -> None:
    """Import what every session imports."""
    import hf_rlhf_classic.dpo
    import hf_rlhf_classic.grpo
    import hf_rlhf_classic.iterative_dpo
    import hf_rlhf_classic.ppo
    import hf_rlhf_classic.reward
    import hf_rlhf_classic.sft  # noqa: F401


def line(row: dict[str, Any]) -> str:
    """Return a row of the table as Markdown."""
    phases = ", ".join(f"{name} {count}" for name, count in row["phases"].items())
    numbers = [f"{row['kills']} / {row['runs']}", f"{row['max_difference']:g}"]
    return f"| {' | '.join([row['run'], *numbers, '; '.join(row['unequal'][:3]) or '-', phases])} |"


if __name__ == "__main__":
    sys.exit(main())
