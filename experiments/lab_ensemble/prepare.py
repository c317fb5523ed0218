"""Train the members of one ensemble in one process: `prepare.py SEED OUT`."""

import sys
from pathlib import Path

from hf_rlhf.train import train

MEMBERS = 3


def main(seed: int, out: Path) -> None:
    """Train reward models on the same pairs, with other seeds for their heads and orders."""
    for number in range(1, MEMBERS + 1):
        settings = {
            "plugin": "reward",
            "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
            "dataset": {
                "name": "tastes",
                "form": "preference",
                "train_rows": 256,
                "test_rows": 50,
                "seed": seed,
            },
            "num_train_epochs": 6,
            "per_device_train_batch_size": 32,
            "learning_rate": 1e-3,
            "center_rewards_coefficient": 0.01,
            "max_length": 64,
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "dataloader_pin_memory": False,
            "save_strategy": "no",
            "seed": 10 * seed + number,
            "output_dir": str(out / f"member{number}"),
        }
        train(config=settings)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
