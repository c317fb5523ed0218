"""All sessions of a run are one run in the tracker, with each step once.

transformers' callbacks for trackio, Weights & Biases and TensorBoard begin a new run at each
resumption, and log repeated steps again.
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
"""Seconds for which a tracker may buffer a value; a kill in that time would lose it."""


@contextmanager
def continued_tracker_run(training: Any, run_id: str, folder: Path) -> Iterator[None]:
    """Within, trackers continue the run that belongs to `folder`.

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


def track_new_steps(trainer: Any, folder: Path) -> None:
    """Let the trainer's trackers log only steps that no earlier session has logged."""
    if not isinstance(trainer, Trainer):
        return
    for cls in get_reporting_integration_callbacks(trainer.args.report_to):
        if (tracker := trainer.pop_callback(cls)) is not None:
            trainer.add_callback(NewSteps(tracker, folder / TRACKED_NAME))


def end_runs() -> None:
    """End the run that Weights & Biases leaves open, so that the next training gets its own."""
    wandb = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        wandb.finish()


class NewSteps:
    """A tracker's callback without the steps that an earlier session has logged."""

    def __init__(self, tracker: Any, path: Path) -> None:
        self._tracker = tracker
        self._path = path
        self._after = int(path.read_text()) if path.exists() else 0
        self._waiting: deque[tuple[float, int]] = deque()

    def __getattr__(self, event: str) -> Any:
        return getattr(self._tracker, event)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log a new step, and note the steps that have been delivered by now."""
        if state.global_step <= self._after:
            return
        self._tracker.on_log(args, state, control, **kwargs)
        self._waiting.append((time.monotonic(), state.global_step))
        if state.is_world_process_zero:
            self._note_delivered(DELIVERY_S)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the tracker deliver everything, and note that."""
        self._tracker.on_train_end(args, state, control, **kwargs)
        if state.is_world_process_zero:
            self._note_delivered(0.0)

    def _note_delivered(self, age: float) -> None:
        delivered = None
        while self._waiting and time.monotonic() - self._waiting[0][0] >= age:
            delivered = self._waiting.popleft()[1]
        if delivered is not None:
            atomic_write_text(self._path, str(delivered))
