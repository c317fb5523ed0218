"""What a run will take, known before its weights are loaded: steps, parameters, space on disk."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hf_rlhf.distributed import processes
from hf_rlhf.errors import Problem
from hf_rlhf.models.loading import lora_config, skeleton
from hf_rlhf.runs.preflight import generation_batch, model_config
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import Space, checkpoint_bytes, final_bytes, human, taken_bytes


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


def parameters_of(run: Run) -> int:
    """Return the base model's number of parameters, counted on the meta device."""
    return int(skeleton(run).num_parameters())


@dataclass(frozen=True)
class DiskNeed:
    """The space that a run takes, in bytes, as far as shapes and dtypes tell."""

    checkpoint: int
    """One checkpoint."""
    end: int
    """The adapter, and the merged weights."""
    made: int
    """How many checkpoints are saved in all."""
    at_once: int
    """How many of them lie there at once: one more than are kept, while one is being saved."""
    beside: int = 0
    """At most, what the trainer keeps beside them, as its `extra_disk_bytes` says."""

    @property
    def total(self) -> int:
        """What everything takes together, at the fullest moment."""
        return self.checkpoint * self.at_once + self.end + self.beside


def disk_need(run: Run, steps: int) -> DiskNeed:
    """Return what a run of `steps` optimizer steps takes on disk.

    Raises ValueError when the model is of a kind that is not known here.
    """
    model, width = skeleton(run), None
    if run.model.use_peft:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(run))
        width = _stored_width(run)
    saves = _saves(run.training, steps)
    remaining = run.training.save_total_limit
    return DiskNeed(
        checkpoint=checkpoint_bytes(model, run.tokenizer, run.training),
        end=final_bytes(model, run.tokenizer, width),
        made=saves,
        at_once=min(saves, remaining + 1) if remaining else saves,
        beside=run.trainer_class.extra_disk_bytes(run),
    )


def _stored_width(run: Run) -> int | None:
    """Return how many bytes a number of the base takes in its files, for so it will be merged."""
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
    """Return that the run cannot end in the folder where it would be written, if so.

    Only what is certain stops it: that not even two checkpoints fit, or one and the end. What lies
    in the folder already counts as free. `where` says where in the run file a top-level key stands.
    """
    try:
        need = disk_need(run, planned_steps(run))
    except ValueError:
        return []  # a kind of model that only its trainer can build
    # The last step's checkpoint is left out where only the end fits (`SealCheckpoints`).
    before_last = max(need.made - 1, 0)
    least = max(
        need.checkpoint * min(before_last, 2), need.checkpoint * min(before_last, 1) + need.end
    )
    space = Space.of(run.folder)
    if taken_bytes(run.folder) + space.bytes >= least:
        return []
    return [
        Problem(
            where("output_dir"),
            f"{run.folder} needs about {human(least)} ({human(need.checkpoint)} for a checkpoint, "
            f"{human(need.end)} at the end), but there is {space}.",
            "Make room, or choose another folder: `--output_dir DIR`.",
        )
    ]
