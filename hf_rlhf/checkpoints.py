"""Which checkpoint of a run can be trusted, and where its saves may fall.

A checkpoint counts once its manifest stands: the list of its files and their sizes, written last.
A full disk or a kill in the middle of a save leaves a folder without one, which
`transformers.trainer_utils.get_last_checkpoint` would pick and resume from.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from hf_rlhf.files import atomic_write_text

MANIFEST = "manifest.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def seal(checkpoint: Path) -> None:
    """Make a complete checkpoint valid: flush its files to disk, then write its manifest."""
    sizes = {}
    for path in sorted(_files(checkpoint)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sizes[str(path.relative_to(checkpoint))] = path.stat().st_size
    atomic_write_text(checkpoint / MANIFEST, json.dumps(sizes, indent=1))


def is_valid(checkpoint: Path) -> bool:
    """Return whether the manifest stands and every file that it names has its size."""
    try:
        sizes = json.loads((checkpoint / MANIFEST).read_text())
        return all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step that a checkpoint folder is named after."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named checkpoint-STEP")
    return int(match[1])


def valid_checkpoints(folder: Path) -> list[Path]:
    """Return the valid checkpoints under `folder`, oldest step first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted((path for path in named if is_valid(path)), key=step_of)


def cycle_in_steps(training: Any) -> int:
    """Return after how many optimizer steps a save falls between two GRPO generation cycles.

    Resuming elsewhere is inexact, since the completions under way are not saved: a cycle is
    lcm(steps_per_generation * num_iterations, accumulation) micro-steps. 1 for other trainers.
    """
    accumulation = training.gradient_accumulation_steps
    cycle = getattr(training, "steps_per_generation", None) or accumulation
    cycle *= getattr(training, "num_iterations", 1)
    return math.lcm(cycle, accumulation) // int(accumulation)


class SealCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Seals each checkpoint when it is complete, then deletes all but the newest `keep`.

    transformers' own rotation deletes before the new checkpoint is known to be whole, so it is
    turned off for our runs.
    """

    def __init__(self, keep: int | None) -> None:
        self.keep = keep

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal what was saved at this step."""
        # Each process writes its own files, and a manifest made before the last would not verify.
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        seal(folder / f"checkpoint-{state.global_step}")
        if self.keep:
            for old in valid_checkpoints(folder)[: -self.keep]:
                shutil.rmtree(old)


class AlreadyTrained(Exception):
    """Training was resumed from the checkpoint of its last step."""


class StopIfTrained(TrainerCallback):  # type: ignore[misc]
    """Raises AlreadyTrained, with the weights loaded, when no step is left to do.

    transformers looks whether training is over only after a step: resumed from its last
    checkpoint within an epoch, it trains one step more than was asked.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look before the first step."""
        if 0 < state.max_steps <= state.global_step:
            raise AlreadyTrained


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            yield path
