"""Every condition of the experiment as a run file: what is trained, on what, for how long."""

from pathlib import Path
from typing import Any

from hf_rlhf import RunRecord

SEEDS = (1, 2, 3)
CALIBRATION_SEED = 100
TRACES = 200
VALIDATION = 0.25
BASE = "package://hf_rlhf_traces/tiny_base"
SINGLE = {"prefix": "summary_prefix", "only": "summary_only", "shuffled": "summary_prefix"}
"""Condition -> the dataset that it is trained on."""
CONDITIONS = ("progressive", *SINGLE)
SHUFFLED_SEED = 1
"""The planted failure is run for one seed."""
LEARNING_RATE = 2e-3
BATCH = 16
EPOCHS = {"multiturn": 10, "summary_only": 10, "summary_prefix": 5}
"""Of the phases of `progressive`, in order: the defaults."""

COMMON: dict[str, Any] = {
    "schema": 1,
    "model_name_or_path": BASE,
    "use_cpu": True,
    "bf16": False,
    "activation_checkpointing": False,
    "dataloader_pin_memory": False,
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "max_length": 1024,
    "learning_rate": LEARNING_RATE,
    "warmup_steps": 0.05,
    "lr_scheduler_type": "linear",
    "logging_steps": 1,
    "save_strategy": "no",
}


def progressive(store: Path, out: Path, seed: int) -> dict[str, Any]:
    """Return the run file of the three phases; the last has half of the learning rate."""
    phases = [
        {
            "name": form,
            "dataset": {"name": "traces", "path": str(store), "form": form},
            "num_train_epochs": epochs,
            "learning_rate": LEARNING_RATE / 2 if form == "summary_prefix" else LEARNING_RATE,
        }
        for form, epochs in EPOCHS.items()
    ]
    return {
        **COMMON,
        "plugin": "traces_progressive",
        "output_dir": str(out),
        "seed": seed,
        "phases": phases,
    }


def single(condition: str, data: Path, out: Path, seed: int, steps: int) -> dict[str, Any]:
    """Return the run file of one dataset alone, for so many optimizer steps."""
    form = SINGLE[condition]
    return {
        **COMMON,
        "plugin": "traces_only" if form == "summary_only" else "traces_prefix",
        "output_dir": str(out),
        "seed": seed,
        "dataset": {"name": "traces", "path": str(data), "form": form},
        "max_steps": steps,
    }


def tokens_of(record: RunRecord) -> int:
    """Return the tokens that have passed through the model in the phases or steps of a run."""
    total, last = 0, 0
    for entry in record.training.history:
        if "num_tokens" in entry:
            now = int(entry["num_tokens"])
            if now < last:  # a new phase counts from 0
                total += last
            last = now
    return total + last
