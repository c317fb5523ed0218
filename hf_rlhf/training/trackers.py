"""One run in the tracker for all sessions of a run, and each step in it once.

transformers' callbacks for trackio, Weights & Biases and TensorBoard begin anew whenever a run is
taken up, and log again the steps that are done again.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.integrations import get_reporting_integration_callbacks

from hf_rlhf.storage.files import atomic_write_text

TRACKED_NAME = ".tracked"
DELIVERY_S = 2.0
"""For how long a tracker may keep a value to itself; a kill in that time would lose it."""


@contextmanager
def one_run(training: Any, run_id: str, folder: Path) -> Iterator[None]:
    """While entered, have trackers go on in the run that belongs to `folder`.

    What the user's environment or run file says of it stands.
    """
    training.run_name = training.run_name or f"{folder.name}-{run_id[:8]}"
    wanted = {
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
    }
    added = [name for name in wanted if name not in os.environ]
    os.environ.update({name: wanted[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def track_new_steps(trainer: Any, folder: Path) -> None:
    """Have the trainer's trackers told only of steps that none of them was told of before."""
    if not isinstance(trainer, Trainer):
        return
    for cls in get_reporting_integration_callbacks(trainer.args.report_to):
        if (tracker := trainer.pop_callback(cls)) is not None:
            trainer.add_callback(NewSteps(tracker, folder / TRACKED_NAME))


def end_runs() -> None:
    """End what a tracker still holds open, so that the next training has a run of its own.

    Weights & Biases keeps its run until the process ends; the others end theirs with training.
    """
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()


class NewSteps:
    """A tracker's callback that passes over the steps that an earlier session has logged."""

    def __init__(self, tracker: Any, path: Path) -> None:
        self._tracker = tracker
        self._path = path
        self._after = int(path.read_text()) if path.exists() else 0
        self._waiting: deque[tuple[float, int]] = deque()

    def __getattr__(self, event: str) -> Any:
        return getattr(self._tracker, event)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Log a step that is new, and remember those that have arrived by now."""
        if state.global_step <= self._after:
            return
        self._tracker.on_log(args, state, control, **given)
        self._waiting.append((time.monotonic(), state.global_step))
        if state.is_world_process_zero:
            self._remember(DELIVERY_S)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Let the tracker deliver what it has; then all of it has arrived."""
        self._tracker.on_train_end(args, state, control, **given)
        if state.is_world_process_zero:
            self._remember(0.0)

    def _remember(self, age: float) -> None:
        arrived = None
        while self._waiting and time.monotonic() - self._waiting[0][0] >= age:
            arrived = self._waiting.popleft()[1]
        if arrived is not None:
            atomic_write_text(self._path, str(arrived))
