"""Pairs of annotators who like length, and a reward model of them: `prepare.py SEED OUT`."""

import json
import math
import random
import sys
from itertools import islice
from pathlib import Path

from hf_rlhf.train import train
from hf_rlhf_worlds.tastes import Host, tastes_of, utility

PAIRS = 1024
TEMPERATURE = 0.3
PER_WORD = 0.15
"""What annotators add for each word; a word costs 0.05 of the utility."""


class LongerHost(Host):
    """A host who names one to five things."""

    def order(self, taste, rng):
        """Join one or two orders."""
        first = super().order(taste, rng)
        return f"{first} and{super().order(taste, rng)}" if rng.random() < 0.5 else first


def pairs(seed: int):
    """Yield pairs labelled by Bradley and Terry's model of utility and length."""
    rng, host = random.Random(seed), LongerHost()
    for taste in islice(tastes_of(seed, "train"), PAIRS):
        orders = [host.order(taste, rng) for _ in range(2)]
        liked = [utility(taste, order) + PER_WORD * len(order.split()) for order in orders]
        if rng.random() > 1 / (1 + math.exp((liked[1] - liked[0]) / TEMPERATURE)):
            orders.reverse()
        yield {"prompt": taste.prompt, "chosen": orders[0], "rejected": orders[1]}


def main(seed: int, out: Path) -> None:
    """Write the pairs, and train on them."""
    path = out / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs(seed)), encoding="utf-8")
    settings = {
        "plugin": "reward",
        "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
        "dataset": {"name": "preference", "path": str(path)},
        "evaluation": {"rows": 100, "batch_size": 100, "samples": 0},
        "num_train_epochs": 3,
        "per_device_train_batch_size": 32,
        "learning_rate": 1e-3,
        "center_rewards_coefficient": 0.01,
        "max_length": 64,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "dataloader_pin_memory": False,
        "save_strategy": "no",
        "seed": seed,
        "output_dir": str(out / "reward"),
    }
    train(config=settings)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
