"""How long a step of training takes: as recorded, as measured now, or by arithmetic."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_rlhf.cards.markdown import counted
from hf_rlhf.distributed import processes
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.models.lengths import model_config, prompt_lengths
from hf_rlhf.runs.estimate import parameters_of, planned_steps
from hf_rlhf.runs.machine import environment
from hf_rlhf.runs.resolve import with_initial_weights
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.record import RunRecord, load_record

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
    steps: int,
    tokens: Mapping[str, int] | None,
    folders: Sequence[Path],
    *,
    measure: bool = True,
) -> Speed:
    """Return how long a step of a run takes.

    What this run, or another one in `folders`, has recorded on the same kind of machine counts
    most; else a few steps are measured on a copy that is thrown away, where one process trains and
    the model is of a size for it, unless `measure` is false; else it is estimated from matrix
    products timed here.
    """
    recorded = _recorded(run, tokens, folders)
    if recorded is not None:
        return recorded
    import torch

    parameters = parameters_of(run)
    if measure and processes() == 1 and (torch.cuda.is_available() or parameters <= _MOST_ON_CPU):
        return _measured(run)
    if getattr(run.training, "max_completion_length", None):
        seconds = _generating(run, parameters)
    else:
        seconds = _learning(run, parameters, tokens)
    basis = "from matrix products timed here; may be 3x off either way"
    return Speed(math.ceil(seconds * 1000) / 1000, basis, measured=False)


def _recorded(run: Run, tokens: Mapping[str, int] | None, folders: Sequence[Path]) -> Speed | None:
    """Return a recorded speed: of the run itself a step's, of another one a token's."""
    for folder in dict.fromkeys((run.folder, *folders)):
        try:
            record = load_record(folder)
        except HfRlhfError:
            continue
        training = record.training
        if not training.steps or not training.seconds or not _same(record, run):
            continue
        if folder == run.folder:
            return Speed(training.seconds / training.steps, "as recorded of its steps so far")
        visited = [item["num_tokens"] for item in training.history if "num_tokens" in item]
        if visited and visited[-1] and tokens:
            a_step = tokens["tokens"] / max(_steps_an_epoch(run), 1)
            seconds = training.seconds / visited[-1] * a_step
            return Speed(seconds, f"from the tokens a second recorded in {folder}")
    return None


def _same(record: RunRecord, run: Run) -> bool:
    """Return whether a record is of the same machine and number of processes."""
    there, here = record.environment, environment()
    same = (there.gpu, there.cpu) == (here.gpu, here.cpu)
    return same and record.training.world_size == processes()


def _steps_an_epoch(run: Run) -> float:
    training = run.training
    batch = training.per_device_train_batch_size * training.gradient_accumulation_steps
    rows = len(run.dataset["train"])
    return float(rows / (batch * processes()))


def _measured(run: Run) -> Speed:
    from datasets import disable_progress_bars
    from transformers import TrainerCallback
    from transformers.utils import logging

    logging.disable_progress_bar()
    disable_progress_bars()
    times: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            times.append(time.monotonic())

    count = min(STEPS, planned_steps(run))
    batch = run.training.per_device_train_batch_size * run.training.gradient_accumulation_steps
    train = run.dataset["train"]
    # Rows from all over, so that they are about as long as they all are.
    stride = max(len(train) // (batch * count), 1)
    some = type(run.dataset)({**run.dataset, "train": train.select(range(0, len(train), stride))})
    with TemporaryDirectory() as folder:
        short = {"max_steps": count, "save_strategy": "no", "report_to": "none"}
        file = _file(run, {**short, "output_dir": folder})
        trial = replace(with_initial_weights(run, file), dataset=some, callbacks=(Clock(),))
        began = time.monotonic()
        trainer = run.trainer_class.from_run(trial)
        _silent(trainer)
        began = time.monotonic()
        trainer.train()
        trainer.accelerator.free_memory()
    each = [after - before for before, after in zip([began, *times], times, strict=False)]
    steady = each[1:] or each  # the first step also warms up
    return Speed(statistics.fmean(steady), f"{counted(len(steady), 'step')} measured here")


def _file(run: Run, changes: Mapping[str, Any]) -> Any:
    from hf_rlhf.config import RunFile

    return RunFile.from_mapping({**run.spec.plain, **changes}, name=run.spec.name)


def _silent(trainer: Any) -> None:
    from transformers import PrinterCallback, ProgressCallback

    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)


def _generating(run: Run, parameters: int) -> float:
    """Estimate a step that samples completions: 2 FLOPs a parameter and token forward, 4 backward.

    A token is decoded once, scored twice and trained on once. Decoding is timed here on a matrix
    product of its own shape, the rest on a large one, of which a third is assumed reached.
    """
    lengths = prompt_lengths(run, 64)
    answer = run.training.max_completion_length
    batch = run.training.per_device_train_batch_size * run.training.gradient_accumulation_steps
    width = getattr(model_config(run), "hidden_size", 1024)
    device = str(run.training.device)
    decoding = batch * answer * parameters * 2 / flops_per_second(device, batch, width)
    tokens = sum(lengths) / len(lengths) + answer
    rest = batch * tokens * parameters * 8 * 3 / flops_per_second(device, 2048, 1024)
    return float(decoding + rest)


def _learning(run: Run, parameters: int, tokens: Mapping[str, int] | None) -> float:
    """Estimate a step that learns from rows.

    2 FLOPs a parameter and token forward, 4 backward, 2 for LoRA (Kaplan et al. 2020,
    arXiv:2001.08361). Recomputing activations costs a forward more. A third of what a matrix
    product reaches here is assumed reached.
    """
    if tokens is None:
        lengths = prompt_lengths(run, 64)
        a_row = sum(lengths) / len(lengths)
    else:
        a_row = tokens["tokens"] / len(run.dataset["train"])
    batch = run.training.per_device_train_batch_size * run.training.gradient_accumulation_steps
    flops = 4 if run.model.use_peft else 6
    if getattr(run.training, "gradient_checkpointing", False):
        flops += 2
    reached = flops_per_second(str(run.training.device), 2048, 1024) / 3
    return float(batch * a_row * parameters * flops / reached)


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
