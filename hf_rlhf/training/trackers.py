"""Make all sessions of a run one run in trackio, Weights & Biases and TensorBoard."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def continued_tracker_run(training: Any, run_id: str, folder: Path) -> Iterator[None]:
    """Let trackers continue the run of `folder` inside the block.

    Settings of the user's environment or run file take precedence.
    """
    training.run_name = training.run_name or f"{folder.name}-{run_id[:8]}"
    variables = {
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
    }
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def end_runs() -> None:
    """End the open run of Weights & Biases, so that the next training gets its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()
