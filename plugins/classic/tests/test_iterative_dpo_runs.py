"""Whole runs of iterative DPO: killed, on two processes, going on from an adapter, and learning."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from hf_rlhf import train
from hf_rlhf.storage.record import load_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RUN = {
    "schema": 1,
    "plugin": "iterative_dpo",
    "model_name_or_path": "package://hf_rlhf_classic/tiny_sft",
    "dataset": {"name": "tastes", "train_rows": 96, "test_rows": 48},
    "rewards": [{"name": "known_utility", "label": "utility"}],
    **{"use_peft": True, "lora_r": 8, "lora_target_modules": ["all-linear"]},
    **{"iterations": 3, "prompts_per_iteration": 32, "completions_per_prompt": 4},
    **{"rollout_batch_size": 32, "max_completion_length": 24, "measured_prompts": 16},
    **{"per_device_train_batch_size": 8, "learning_rate": 1e-3, "max_length": 64},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "logging_steps": 1, "save_steps": 3, "seed": 5},
}
"""Three iterations of four steps, saved at steps 3, 6, 9 and 12: never between two iterations."""

FULL = {"use_peft": False, "learning_rate": 1e-4}


def weights(folder: Path):
    (path,) = [*folder.glob("adapter/adapter_model.safetensors"), *folder.glob("merged/model*")][:1]
    return load_file(path)


def difference(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def started(file: Path, folder: Path):
    command = [sys.executable, "-m", "hf_rlhf.train", "--config", str(file)]
    command += ["--output_dir", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder.parent / f"{folder.name}.log").open("a") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def killed_when(file: Path, folder: Path, sight: str) -> None:
    """Start the run, and kill -9 it as soon as the file `sight` is there."""
    process = started(file, folder)
    try:
        while process.poll() is None and not (folder / sight).exists():
            time.sleep(0.005)
        assert process.poll() is None, f"it ended before {sight} was there"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


SIGHTS = (
    "iterations/policy-0000/held_out-00000.json",
    "iterations/policy-0000/rollouts-00001.json",
    "iterations/policy-0000/reference-00001.json",
    "checkpoints/checkpoint-3/manifest.json",
    "iterations/policy-0001/rollouts-00002.json",
    "checkpoints/checkpoint-6/trainer_state.json",
    "checkpoints/checkpoint-6/manifest.json",
    "iterations/policy-0002/reference-00000.json",
    "iterations/policy-0003/held_out-00000.json",
)


@pytest.mark.parametrize(
    ("given", "sights"),
    [
        ({"buffer": "rolling2", "reference": "previous"}, SIGHTS),
        ({"buffer": "full", **FULL}, SIGHTS[1::2]),
    ],
    ids=["lora", "full"],
)
def test_killed_anywhere_it_ends_with_the_same_weights(tmp_path, given, sights):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**RUN, **given}))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert started(file, whole).wait() == 0
    kept: dict[Path, tuple[int, str]] = {}
    for sight in sights:
        killed_when(file, broken, sight)
        for path in sorted((broken / "iterations").rglob("*-*.json")):
            now = (path.stat().st_ino, path.read_text())
            assert kept.setdefault(path, now) == now, f"{path} was written twice"
            json.loads(now[1])
    assert started(file, broken).wait() == 0
    assert difference(whole, broken) == 0
    for path, (inode, text) in kept.items():
        assert (path.stat().st_ino, path.read_text()) == (inode, text)
    histories = [load_record(folder).training.history for folder in (whole, broken)]
    ours, theirs = ([e for e in h if "policy" in e or "iteration" in e] for h in histories)
    assert ours == theirs
    steps = [[(e["step"], e["loss"], e["num_tokens"]) for e in h if "loss" in e] for h in histories]
    assert steps[0] == steps[1]
    assert not list(broken.rglob("ref"))


def test_a_run_on_two_processes_samples_and_trains_as_one_does(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    train(config={**RUN, "iterations": 2, "buffer": "full"}, output_dir=str(alone))
    file = tmp_path / "run.yaml"
    given = {"iterations": 2, "buffer": "full", "per_device_train_batch_size": 4}
    file.write_text(yaml.safe_dump({**RUN, **given, "expect_world_size": 2}))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", "-m", "hf_rlhf.train", "--config", str(file)]
    done = subprocess.run(
        [*command, "--output_dir", str(together)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for kind in ("rollouts", "held_out"):
        first, second = (
            [p.read_text() for p in sorted((f / "iterations/policy-0000").glob(f"{kind}-*"))]
            for f in (alone, together)
        )
        assert first == second
    # Gradients are averaged in another order, so later numbers agree to rounding.
    assert difference(alone, together) < 1e-4
    one, two = (
        [e for e in load_record(f).training.history if "policy" in e] for f in (alone, together)
    )
    assert [e["policy"] for e in two] == [0, 1, 2]
    assert two[-1]["held_out/reward"] == pytest.approx(one[-1]["held_out/reward"], abs=0.05)


def test_an_adapter_is_continued_and_is_the_initial_policy(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    train(config={**RUN, "iterations": 1, "learning_rate": 5e-3}, output_dir=str(first))
    record = train(
        config={
            **{key: value for key, value in RUN.items() if not key.startswith("lora_")},
            **{"iterations": 2, "adapter": str(first / "adapter"), "learning_rate": 1e-3},
        },
        output_dir=str(second),
    )
    history = record.training.history
    steps = [entry for entry in history if "loss" in entry]
    assert steps[0]["rewards/chosen"] == pytest.approx(0, abs=1e-4), "the reference is the adapter"
    last = [entry for entry in history if "policy" in entry][-1]
    assert 0 < last["kl/sequence"] < 1
    assert not list(second.rglob("ref"))
    assert difference(first, second) > 0


LEARNING = {
    **RUN,
    "dataset": {"name": "tastes", "train_rows": 768, "test_rows": 200},
    **{"prompts_per_iteration": 256, "rollout_batch_size": 256, "measured_prompts": 200},
    **{"per_device_train_batch_size": 32, "save_strategy": "no"},
}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """What was measured of each policy of a run of three iterations."""
    record = train(config=LEARNING, output_dir=str(tmp_path_factory.mktemp("learns") / "run"))
    return [entry for entry in record.training.history if "policy" in entry], record


@pytest.mark.smoke
def test_it_learns_over_iterations(learnt):
    measured, record = learnt
    initial, last = measured[0], measured[-1]
    assert last["held_out/reward_low"] > initial["held_out/reward_high"]
    assert last["held_out/win_rate_initial_low"] > 0.5
    assert measured[1]["held_out/win_rate_initial"] < last["held_out/win_rate_initial"]
    assert 0 == initial["kl/sequence"] < measured[1]["kl/sequence"]
    shown = record.training.report
    assert [row["iteration"] for row in shown["Pairs of each iteration"]] == [1, 2, 3]
    assert len(shown["Held out, after each iteration"]) == 4
