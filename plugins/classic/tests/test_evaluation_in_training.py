"""Evaluation during training: it measures what is measured afterwards, stops, and saves the best.

In real runs of real trainers, killed and launched as two processes too.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hf_rlhf import train
from hf_rlhf.config import RunFile
from hf_rlhf.runs import resolve_run
from hf_rlhf.storage import load_record
from hf_rlhf_classic.sft import SupervisedTrainer

pytestmark = pytest.mark.slow

CPU = {
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False},
}
OVERFITTING = {
    "schema": 1,
    "plugin": "sft",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_base",
    "dataset": {"name": "tastes", "form": "sft", "train_rows": 64, "test_rows": 300},
    "evaluation": {"rows": 200, "samples": 0, "batch_size": 100},
    "max_steps": 150,
    "save_steps": 10,
    "eval_steps": 10,
    "eval_strategy": "steps",
    "load_best_model_at_end": True,
    "metric_for_best_model": "held_out/loss",
    "early_stopping": {"patience": 2},
    "save_total_limit": 1,
    "learning_rate": 6e-3,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": 32,
    "logging_steps": 10,
    "seed": 1,
    **CPU,
}
"""64 rows, learned by heart: the held-out loss falls, and then rises."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an uninterrupted run, and its record."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, train(config=OVERFITTING, output_dir=str(folder))


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def held_out(folder):
    """Return what the record keeps of the evaluations: what was measured, and decided."""
    record = load_record(folder)
    keys = ("eval_loss", "eval_held_out/loss", "eval_held_out/token_accuracy")
    curve = [
        {key: entry[key] for key in keys if key in entry} | {"step": entry["step"]}
        for entry in record.training.history
        if any(key in entry for key in keys)
    ]
    return curve, record.training.validation


@pytest.mark.parametrize("seed", [1, 2])
def test_an_overfitting_run_stops_and_saves_its_best_weights(seed, whole, tmp_path):
    folder, record = whole if seed == 1 else (tmp_path / "run", None)
    record = record or train(config=OVERFITTING, output_dir=str(folder), seed=seed)
    decided = record.training.validation
    stopped = record.training.steps
    assert decided.stopped_early
    assert stopped == decided.best_step + 20 < 150
    checkpoints = folder / "checkpoints"
    # One is kept, and the best one beside it.
    assert sorted(path.name for path in checkpoints.iterdir()) == sorted(
        [f"checkpoint-{decided.best_step}", f"checkpoint-{stopped}"]
    )
    best, last = (weights(checkpoints / f"checkpoint-{n}") for n in (decided.best_step, stopped))
    assert same(weights(folder / "merged"), best)
    assert not same(best, last)

    run = resolve_run(RunFile.from_mapping({**OVERFITTING, "output_dir": str(folder)}))
    worse = SupervisedTrainer.held_out(run, checkpoints / f"checkpoint-{stopped}", {})
    after = record.evaluation.after["loss"].mean
    assert after < worse.means()["loss"].mean
    # Rows of their own choose the weights.
    assert (decided.first_row, decided.rows, decided.separate) == (200, 100, True)

    card = (folder / "README.md").read_text()
    assert f"`loss` was best at step {decided.best_step}" in card
    assert "stopped after 2 evaluations without an improvement" in card
    assert "are optimistic" not in card
    assert "ended at step" not in card


def test_a_killed_run_decides_the_same(whole, tmp_path):
    folder, config = tmp_path / "run", tmp_path / "run.json"
    config.write_text(json.dumps({**OVERFITTING, "output_dir": str(folder)}))
    best = whole[1].training.validation.best_step
    command = [sys.executable, "-m", "hf_rlhf.train", "--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    # It has the best weights by then, and counts the evaluations since.
    manifest = folder / "checkpoints" / f"checkpoint-{best + 10}" / "manifest.json"
    while process.poll() is None and not manifest.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "merged").exists()
    # A folder may be moved before it is resumed.
    moved = tmp_path / "moved"
    folder.rename(moved)
    train(config=OVERFITTING, output_dir=str(moved))
    assert held_out(moved) == held_out(whole[0])
    assert same(weights(moved / "merged"), weights(whole[0] / "merged"))


PAIRS = {"name": "tastes", "form": "preference", "train_rows": 32, "test_rows": 16}
SUMS = {"name": "arithmetic", "train_rows": 32, "test_rows": 16}
LORA = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "lora_dropout": 0.0}
SAMPLING = {"num_generations": 2, "per_device_eval_batch_size": 8, "max_completion_length": 8}
UTILITY = [{"name": "known_utility", "label": "utility"}]
CORRECT = [{"name": "arithmetic_correct", "label": "correct"}]


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("dpo", {"dataset": PAIRS, "rewards": UTILITY, **LORA}),
        ("reward", {"dataset": PAIRS, **LORA, "activation_checkpointing": True}),
        ("kto", {"dataset": {**PAIRS, "form": "unpaired"}}),
        ("orpo", {"dataset": PAIRS}),
        ("cpo", {"dataset": PAIRS, "loss_type": "simpo"}),
        ("grpo", {"dataset": SUMS, "rewards": CORRECT, **SAMPLING, **LORA}),
        ("rloo", {"dataset": SUMS, "rewards": CORRECT, **SAMPLING}),
        ("ppo", {"dataset": SUMS, "rewards": CORRECT, "max_completion_length": 8, **LORA}),
        ("online_dpo", {"dataset": SUMS, "rewards": CORRECT, "max_new_tokens": 8}),
        (
            "distillation",
            {
                **{"dataset": SUMS, "rewards": CORRECT, "max_completion_length": 8},
                "teacher_model_name_or_path": "package://hf_rlhf_classic/tiny_base",
            },
        ),
    ],
)
def test_the_model_in_training_is_measured_as_the_saved_one(plugin, settings, tmp_path):
    """On the same rows, the last evaluation and the one after training give the same numbers."""
    record = train(
        config={
            **{"schema": 1, "plugin": plugin, "output_dir": str(tmp_path / "run"), **CPU},
            "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
            **{"evaluation": {"rows": 16, "samples": 0}, "validation": {"split": "test"}},
            **{"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2},
            **{"per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1},
            **settings,
        }
    )
    after = {name: each.mean for name, each in record.evaluation.after.items()}
    start = "eval_held_out/"
    *_, last = [
        entry for entry in record.training.history if f"{start}{next(iter(after))}" in entry
    ]
    measured = {name.removeprefix(start): last[name] for name in last if name.startswith(start)}
    assert last["step"] == 4
    assert measured == pytest.approx(after, abs=1e-4)
    if plugin not in ("ppo", "online_dpo", "distillation"):
        assert any("eval_loss" in entry for entry in record.training.history)
    if "implicit_margin" in after and plugin == "dpo":
        difference = record.evaluation.difference
        beta = 0.1
        assert after["implicit_margin"] == pytest.approx(
            beta * difference["preference_margin"].mean, abs=1e-5
        )
