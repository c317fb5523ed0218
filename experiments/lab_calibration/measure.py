"""What is kept of a run: `measure.py RUN OUT --seed SEED --temperature TEMPERATURE`."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.evaluation import Evaluation
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_lab.validation.calibration import with_temperature
from hf_rlhf_worlds.tastes import tastes

PAIRS = 400


def reward_model(run: Path, seed: int, temperature: float) -> dict[str, Any]:
    """Return each held-out pair's confidence, and the temperatures."""
    evaluation = Evaluation.load(run / "evaluation" / "after_held_out.json")
    margins = np.array(evaluation.column("margin"), dtype=float)
    dataset = tastes("preference", 1, PAIRS, seed, temperature, margin=True).dataset
    gains = np.array(dataset["test"]["margin"])
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    right = (margins > 0) + 0.5 * (margins == 0)
    slope = float(margins @ gains / (gains @ gains))
    return {
        "rows": {
            "confidence": confidence.tolist(),
            "overconfidence": (confidence - right).tolist(),
            "accuracy": right.tolist(),
        },
        "values": {
            "true_temperature": temperature,
            "implied_temperature": 1 / slope,
            "fitted_temperature": with_temperature(np.abs(margins), right)[1],
        },
    }


def policy(run: Path) -> dict[str, Any]:
    """Return what the run measured before and after."""
    columns = {}
    for stage in ("before", "after"):
        evaluation = Evaluation.load(run / "evaluation" / f"{stage}.json")
        columns[stage] = {name: evaluation.column(name) for name in evaluation.metrics()}
    history = json.loads((run / "run.json").read_text())["training"]["history"]
    kl = [entry["kl_per_completion"] for entry in history if "kl_per_completion" in entry]
    return {"rows": columns["after"], "before": columns["before"], "values": {"kl": kl[-1]}}


def main() -> None:
    """Write what the study reads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--temperature", type=float)
    args = parser.parse_args()
    if (args.run / "evaluation" / "after.json").exists():
        content = policy(args.run)
    else:
        content = reward_model(args.run, args.seed, args.temperature)
    atomic_write_json(args.out, content)


if __name__ == "__main__":
    main()
