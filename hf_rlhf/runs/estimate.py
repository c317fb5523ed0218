"""Steps and disk space of a run, computed before its weights are loaded."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hf_rlhf.distributed import processes
from hf_rlhf.errors import Problem
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.loading import trained_skeleton
from hf_rlhf.runs.preflight_launch import sharding
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import checkpoint_bytes, final_bytes, free_bytes, human, taken_bytes


def planned_steps(run: Run) -> int:
    """Return how many optimizer steps the run will take."""
    training = run.training
    if training.max_steps > 0:
        return int(training.max_steps)
    rows = len(run.dataset["train"])
    if batch := generation_batch(training):
        batches = rows // (batch // training.num_generations)
        micro = batches * training.steps_per_generation * training.num_iterations
    else:
        micro = math.ceil(rows / (training.per_device_train_batch_size * processes()))
    per_epoch = max(micro // training.gradient_accumulation_steps, 1)
    return int(math.ceil(per_epoch * training.num_train_epochs))


def final_state(steps: int, epochs: float) -> Any:
    """Return the state of a trainer at its end, for rewards that change during training."""
    from transformers import TrainerState

    return TrainerState(global_step=steps, max_steps=steps, epoch=float(epochs))


def generation_batch(training: Any) -> int | None:
    """Return how many completions all processes generate at a time; None for other trainers."""
    batch = getattr(training, "generation_batch_size", None)
    # TRL counts the processes of this launch; a dry run plans for others.
    return batch * processes() // training.world_size if batch else None


def cycle_in_steps(training: Any) -> int:
    """Return after how many optimizer steps a save falls between two GRPO generation cycles.

    Resuming elsewhere is inexact, since the completions under way are not saved: a cycle is
    lcm(steps_per_generation * num_iterations, accumulation) micro-steps. 1 for other trainers.
    """
    accumulation = training.gradient_accumulation_steps
    cycle = getattr(training, "steps_per_generation", None) or accumulation
    cycle *= getattr(training, "num_iterations", 1)
    return math.lcm(cycle, accumulation) // int(accumulation)


@dataclass(frozen=True)
class DiskNeed:
    """The space that a run takes, in bytes, as far as shapes and dtypes tell."""

    checkpoint: int
    """Bytes of a checkpoint."""
    end: int
    """Bytes of the adapter and the merged weights."""
    saves: int
    """How many checkpoints are saved in all."""
    at_once: int
    """How many exist at once: kept checkpoints, and the checkpoint being saved."""
    beside: int = 0
    """Upper bound on the trainer's other files, by its `extra_disk_bytes`."""

    @property
    def total(self) -> int:
        """The space at the fullest moment."""
        return self.checkpoint * self.at_once + self.end + self.beside


def disk_need(run: Run, steps: int) -> DiskNeed:
    """Return the disk space for a run of `steps` optimizer steps.

    Raises ValueError for an unknown kind of model.
    """
    model = trained_skeleton(run)
    width = _stored_width(run) if run.model.use_peft else None
    saves = _saves(run.training, steps)
    limit = run.training.save_total_limit
    spared = run.training.load_best_model_at_end + 2 * (run.spec.monitor is not None)
    kept = limit + spared if limit else saves
    return DiskNeed(
        checkpoint=checkpoint_bytes(model, run.tokenizer, run.training, sharding(run)),
        end=final_bytes(model, run.tokenizer, width),
        saves=saves,
        at_once=min(saves, kept + 1),
        beside=run.trainer_class.extra_disk_bytes(run),
    )


def _stored_width(run: Run) -> int | None:
    """Return how many bytes a number of the base takes in its files, and so in the merged model."""
    import torch

    stored = getattr(model_config(run).get_text_config(), "dtype", None)
    return stored.itemsize if isinstance(stored, torch.dtype) else None


def _saves(training: Any, steps: int) -> int:
    """Return how many checkpoints are saved; the last step is saved in any case."""
    if training.save_strategy == "no":
        return 0
    every = training.save_steps
    if training.save_strategy != "steps":
        every = steps / max(training.num_train_epochs, 1)
    # Below 1 it is a share of the training.
    return int(math.ceil(steps / max(every if every >= 1 else every * steps, 1)))


def disk_problems(run: Run, where: Callable[[str], str]) -> list[Problem]:
    """Return a problem if the run does not fit on the disk of its folder.

    Only certain failures count: two checkpoints do not fit, or a checkpoint and the final weights.
    Existing files of the folder count as free. `where` returns a key's origin.
    """
    try:
        need = disk_need(run, planned_steps(run))
    except ValueError:
        return []  # a kind of model that only its trainer can build
    # The last step's checkpoint is left out where only the end fits (`CheckpointManifestCallback`).
    before_last = max(need.saves - 1, 0)
    least = max(
        need.checkpoint * min(before_last, 2), need.checkpoint * min(before_last, 1) + need.end
    )
    free = free_bytes(run.folder)
    if taken_bytes(run.folder) + free >= least:
        return []
    return [
        Problem(
            where("output_dir"),
            f"{run.folder} needs about {human(least)} ({human(need.checkpoint)} for a checkpoint, "
            f"{human(need.end)} at the end), but there are {human(free)} free.",
            "Free space, or choose another folder: `--output_dir DIR`.",
        )
    ]
