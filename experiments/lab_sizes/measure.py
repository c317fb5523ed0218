"""Accuracy of a reward model on exact pairs of orders: `python measure.py MODEL SEED OUT`."""

import json
import sys
from pathlib import Path

from hf_rlhf_classic.scoring import RewardModel
from hf_rlhf_worlds.tastes import tastes, well_put


def outcomes(chosen: list[float], rejected: list[float]) -> list[float]:
    """Return 1 where the better response has the higher score, a half for ties."""
    return [0.5 if a == b else float(a > b) for a, b in zip(chosen, rejected, strict=True)]


model, seed, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
rows = tastes("preference", train_rows=1, test_rows=400, seed=seed, temperature=0).dataset["test"]
reward = RewardModel(model, batch_size=100)
sides = [list(rows[name]) for name in ("chosen", "rejected")]
accuracy = outcomes(*(reward(list(rows["prompt"]), texts) for texts in sides))
rule = outcomes(*([float(well_put(text)) for text in texts] for texts in sides))
out.write_text(json.dumps({"rows": {"accuracy": accuracy, "rule": rule}}), encoding="utf-8")
