"""How long a step of training takes: as recorded, as measured now, or by arithmetic."""

import math
import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.distributed import processes
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.formatting import counted
from hf_rlhf.models.lengths import has_new_head, model_config, prompt_lengths
from hf_rlhf.runs.devices import Device
from hf_rlhf.runs.estimate import parameters_of, planned_steps
from hf_rlhf.runs.machine import environment
from hf_rlhf.runs.resolve import with_settings
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.record import load_record
from hf_rlhf.training.library_warnings import head_is_new

STEPS = 4
"""How many steps are measured; the first, in which everything is set up, does not count."""
_MOST_ON_CPU = 500_000_000
"""Parameters of a model that is not loaded to be measured where there is no GPU."""


@dataclass(frozen=True)
class Speed:
    """Seconds of an optimizer step, and where the number comes from."""

    seconds_a_step: float
    basis: str
    measured: bool = True
    """False for an estimate by arithmetic, which leaves out the rewards."""


def speed_of(
    run: Run,
    tokens: Mapping[str, int] | None,
    *,
    measure: bool = True,
    device: Device | None = None,
) -> Speed:
    """Return how long a step of a run takes, on `device` or here.

    It is what the run has recorded on the same kind of machine; else a few steps are measured on a
    copy in memory, where one process trains and the model is small enough, unless `measure` is
    false or the trainer refuses so few; else it is estimated from matrix products timed here.
    """
    parameters = parameters_of(run)
    if device is not None:
        return _on_device(run, parameters, tokens, device)
    if (recorded := _recorded(run)) is not None:
        return recorded
    import torch

    if measure and processes() == 1 and (torch.cuda.is_available() or parameters <= _MOST_ON_CPU):
        # Not every trainer can train on so few rows or steps, such as one with iterations.
        with suppress(HfRlhfError, ValueError):
            return _measured(run)
    here, width = str(run.training.device), getattr(model_config(run), "hidden_size", 1024)
    rates = _Rates(flops_per_second(here, 2048, 1024), flops_per_second(here, _batch(run), width))
    basis = "from matrix products timed here; may be off by a factor of 3"
    return _estimated(run, parameters, tokens, rates, basis)


def _on_device(
    run: Run, parameters: int, tokens: Mapping[str, int] | None, device: Device
) -> Speed:
    """Return the time of a step by a device's data sheet.

    Decoding reads every weight, 2 bytes each, for one token of each row of the batch.
    """
    peak = device.tflops * 1e12
    rates = _Rates(peak, min(peak, _batch(run) * device.bandwidth * 1e12) / 3)
    basis = f"a third of {device.name}'s {device.tflops} TFLOP/s and {device.bandwidth:g} TB/s by "
    basis += "its data sheet; may be off by a factor of 3"
    return _estimated(run, parameters, tokens, rates, basis)


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
    # Rows from all over, so that their lengths are typical.
    stride = max(len(train) // (_batch(run) * count), 1)
    rows = type(run.dataset)({**run.dataset, "train": train.select(range(0, len(train), stride))})
    with TemporaryDirectory() as folder:
        settings = {"max_steps": count, "save_strategy": "no", "report_to": "none"}
        trial = with_settings(run, {**settings, "output_dir": folder})
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


def _batch(run: Run) -> int:
    """Return how many rows a process trains on in one optimizer step."""
    training = run.training
    return int(training.per_device_train_batch_size * training.gradient_accumulation_steps)


@dataclass(frozen=True)
class _Rates:
    """FLOPs a second."""

    large: float
    """Of products of large matrices, at best; a third of it is assumed."""
    decoding: float
    """Of the product that decodes one token of each row."""


def _estimated(
    run: Run, parameters: int, tokens: Mapping[str, int] | None, rates: _Rates, basis: str
) -> Speed:
    """Return the time of a step by arithmetic.

    2 FLOPs a parameter and token forward, 4 backward, 2 for LoRA (Kaplan et al. 2020,
    arXiv:2001.08361); recomputing activations costs a forward more. A token that is sampled is
    decoded once, scored twice and trained on once.
    """
    training = run.training
    completion = getattr(training, "max_completion_length", None) or 0
    if tokens is None or completion:
        row = statistics.fmean(prompt_lengths(run, 64)) + completion
    else:
        row = tokens["tokens"] / len(run.dataset["train"])
    flops = 4 if run.model.use_peft else 6
    flops += 2 * bool(getattr(training, "activation_checkpointing", False))
    flops += 4 if completion else 0
    seconds = flops * _batch(run) * row * parameters / (rates.large / 3)
    seconds += 2 * _batch(run) * completion * parameters / rates.decoding
    return Speed(math.ceil(seconds * 1000) / 1000, basis, measured=False)


def flops_per_second(device: str, rows: int, width: int) -> float:
    """Return what a product of matrices reaches here, (rows, width) times (width, width)."""
    import torch

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    batch = torch.ones(rows, width, dtype=dtype, device=device)
    weight = torch.ones(width, width, dtype=dtype, device=device)
    best = math.inf
    for _ in range(32):
        began = time.perf_counter()
        float((batch @ weight)[0, 0])  # reading a number waits for the device
        best = min(best, time.perf_counter() - began)
    return 2 * rows * width * width / best
