"""Run the experiment of PLAN.md: `python experiments/refiner_tiny/run.py --out FOLDER`.

Nine runs of a few minutes each, one after the other; a run that is finished is not repeated. Then
`report.py` writes the results beside this file.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

SEEDS = (1, 2, 3)
CONDITIONS: dict[str, dict[str, float]] = {
    "hardened": {"hardened": 1.0, "card_faithful": 0.0},
    "card_faithful": {"hardened": 0.0, "card_faithful": 1.0},
    "flipped": {"hardened": -1.0, "card_faithful": 0.0},
}
"""The weight of each preset's reward; weight 0 measures without training on it."""
COMPLETIONS = 4
MONITORS = {
    "answer_format": "format",
    "answer_length": "words",
    "snippet_count": "snippets",
    "hallucinated_ids": "hallucinated_ids",
    "uncited_share": "uncited",
}


def rewards(condition: str) -> list[dict[str, Any]]:
    """Return the `rewards:` section of a condition."""
    presets = [
        {"name": "refiner_reward", "label": preset, "preset": preset, "weight": weight}
        for preset, weight in CONDITIONS[condition].items()
    ]
    judged = [*presets, {"name": "citation_f1", "label": "citation_f1", "weight": 0}]
    free = [{"name": name, "label": label, "weight": 0} for name, label in MONITORS.items()]
    return [*({**entry, "judge": "words"} for entry in judged), *free]


def train_one(condition: str, seed: int, folder: Path) -> None:
    """Train and evaluate one run in `folder`."""
    from hf_rlhf import train

    train(
        "refiner_grpo",
        rewards=rewards(condition),
        evaluation={
            "rows": None,
            "temperature": 1.0,
            "batch_size": 200,
            "completions_per_prompt": COMPLETIONS,
            "seed": 1000 * seed,
        },
        seed=seed,
        output_dir=str(folder),
    )


def main() -> int:
    """Run every run in a process of its own, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the run folders")
    parser.add_argument("--one", nargs=2, metavar=("CONDITION", "SEED"), help="run only this one")
    chosen = parser.parse_args()
    if chosen.one:
        condition, seed = chosen.one
        train_one(condition, int(seed), chosen.out / f"{condition}-{seed}")
        return 0
    # Seeds outermost: whenever it is stopped, the conditions are about equally far.
    for seed in SEEDS:
        for condition in CONDITIONS:
            print(f"== {condition}, seed {seed}", flush=True)
            command = [sys.executable, __file__, "--out", str(chosen.out)]
            subprocess.run([*command, "--one", condition, str(seed)], check=True)
    report = Path(__file__).with_name("report.py")
    return subprocess.run([sys.executable, str(report), str(chosen.out)], check=True).returncode


if __name__ == "__main__":
    sys.exit(main())
