"""The duration of a training step, recorded or measured now."""

import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.distributed import processes
from hf_rlhf.errors import HfRlhfError, first_line
from hf_rlhf.formatting import counted
from hf_rlhf.models.lengths import has_new_head
from hf_rlhf.models.loading import skeleton
from hf_rlhf.runs.estimate import planned_steps
from hf_rlhf.runs.machine import environment
from hf_rlhf.runs.resolve import with_settings
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.record import load_record
from hf_rlhf.training.library_warnings import head_is_new

STEPS = 4
"""Number of measured steps; the first includes set-up and does not count."""
_MOST_ON_CPU = 500_000_000
"""Models with more parameters are not loaded for a measurement without a GPU."""


@dataclass(frozen=True)
class Speed:
    """Seconds of an optimizer step, and the source of the number."""

    seconds_a_step: float | None
    """None if the trainer refuses the settings, or so few rows and steps; `basis` says why."""
    basis: str


def speed_of(run: Run, *, measure: bool = True) -> Speed | None:
    """Return the duration of a run's step on this machine.

    It comes from the run's record on the same kind of machine, or from a few steps on a copy in
    memory. None if several processes train, the model is too large, or `measure` is false.
    """
    if (recorded := _recorded(run)) is not None or not measure or processes() > 1:
        return recorded
    import torch

    if torch.cuda.is_available() or skeleton(run).num_parameters() <= _MOST_ON_CPU:
        try:
            return _measured(run)
        except (HfRlhfError, ValueError, NotImplementedError) as error:
            return Speed(None, f"not measured: {first_line(error)}")
    return None


def _recorded(run: Run) -> Speed | None:
    try:
        record = load_record(run.folder)
    except HfRlhfError:
        return None
    training, there, here = record.training, record.environment, environment()
    same = (there.gpu, there.cpu, training.world_size) == (here.gpu, here.cpu, processes())
    if not same or not training.steps or not training.seconds:
        return None
    return Speed(training.seconds / training.steps, "from the steps of this run so far")


def _measured(run: Run) -> Speed:
    from transformers import TrainerCallback

    from hf_rlhf.training.progress import disable_progress_bars, remove_printers

    disable_progress_bars()
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(time.monotonic())

    count = min(STEPS, planned_steps(run))
    train = run.dataset["train"]
    # Rows spread over the data, so that their lengths are typical.
    batch = run.training.per_device_train_batch_size * run.training.gradient_accumulation_steps
    stride = max(len(train) // (batch * count), 1)
    rows = type(run.dataset)({**run.dataset, "train": train.select(range(0, len(train), stride))})
    with TemporaryDirectory() as folder:
        fixed = {"save_strategy": "no", "report_to": "none", "output_dir": folder}
        trial = with_settings(run, fixed | {"max_steps": count})
        trial = replace(trial, dataset=rows, folder=Path(folder), callbacks=(Clock(),))
        with head_is_new(has_new_head(run)):
            trainer = run.trainer_class.from_run(trial)
        remove_printers(trainer)
        began = time.monotonic()
        trainer.train()
        trainer.accelerator.free_memory()
    each = [after - before for before, after in pairwise([began, *times])]
    steady = each[1:] or each  # the first step also warms up
    return Speed(statistics.fmean(steady), f"{counted(len(steady), 'step')} measured here")
