"""Kill runs of the classic stages with SIGKILL at random moments, go on, and compare.

As in `experiments/kill_matrix`, whose machinery this uses: killed and unharmed run must agree in
every weight, every measured row, and the record, but for times and the list of sessions. Exits with
1 if any do not.
"""

import argparse
import json
import random
import runpy
import sys
from collections import Counter
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where runs are written")
    parser.add_argument("--kills", type=int, default=10, help="kills of each cell, at least")
    parser.add_argument("--cells", type=int, nargs="*", help="only these, from 0; 5 needs 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="write the table's rows there, as JSON")
    arguments = parser.parse_args()
    preload()
    moments = random.Random(arguments.seed)
    rows = []
    for number, (name, cell) in enumerate(CELLS.items()):
        if arguments.cells and number not in arguments.cells:
            continue
        folder = arguments.folder / f"{number:02}"
        content = {**COMMON, **cell}
        if "adapter" in cell:
            content["adapter"] = str(arguments.folder / "01" / "whole" / "adapter")
        rows.append({"run": name, **measure(content, folder, arguments.kills, moments)})
        print(line(rows[-1]), flush=True)
        if arguments.results:
            arguments.results.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["max_difference"] != 0 or row["unequal"] for row in rows))


def preload() -> None:
    """Import what every session imports."""
    import hf_rlhf_classic.dpo
    import hf_rlhf_classic.grpo
    import hf_rlhf_classic.iterative_dpo
    import hf_rlhf_classic.ppo
    import hf_rlhf_classic.reward
    import hf_rlhf_classic.sft  # noqa: F401


def measure(
    content: dict[str, Any], folder: Path, kills: int, moments: random.Random
) -> dict[str, Any]:
    """Kill runs until `kills` have hit; return how the runs that went on compare."""
    folder.mkdir(parents=True)
    config = folder / "run.json"
    config.write_text(json.dumps(content))
    session = MATRIX["Session"](config, folder / "whole")
    seconds = session.end()
    if session.status:
        raise RuntimeError(f"the unharmed run failed: {folder / 'whole.log'}")
    hit: Counter[str] = Counter()
    differences, unequal = [], set()
    while sum(hit.values()) < kills:
        killed = folder / f"killed-{len(differences)}"
        phase: str | None = ""
        while phase is not None:
            session = MATRIX["Session"](config, killed)
            phase = session.kill(moments.uniform(0, seconds))
            hit.update([phase] if phase is not None else [])
            if sum(hit.values()) >= kills and phase is not None:
                session = MATRIX["Session"](config, killed)
                session.end()
                phase = None
        if session.status:
            raise RuntimeError(f"it did not go on ({session.status}): {killed}.log")
        differences.append(MATRIX["largest_difference"](folder / "whole", killed))
        unequal |= set(unlike(folder / "whole", killed))
    return {
        "runs": len(differences),
        "kills": sum(hit.values()),
        "phases": dict(hit.most_common()),
        "max_difference": max(differences),
        "unequal": sorted(unequal),
    }


def unlike(one: Path, other: Path) -> list[str]:
    """Name what differs between two runs beside their weights."""
    found = []
    for path in sorted((one / "evaluation").glob("*.json")):
        if path.read_bytes() != (other / "evaluation" / path.name).read_bytes():
            found.append(path.name)
    return [*found, *MATRIX["paths"](MATRIX["record"](one), MATRIX["record"](other))]


def line(row: dict[str, Any]) -> str:
    """Return a row of the table as Markdown."""
    phases = ", ".join(f"{name} {count}" for name, count in row["phases"].items())
    shown = [row["run"], f"{row['kills']} / {row['runs']}", f"{row['max_difference']:g}"]
    return f"| {' | '.join([*shown, '; '.join(row['unequal'][:3]) or '-', phases])} |"


if __name__ == "__main__":
    sys.exit(main())
