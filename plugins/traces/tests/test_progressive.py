"""Phases begun with what the one before has made: killed, damaged, on two processes, pushed."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.launched.environment import launch_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
LORA = {
    **{"use_peft": True, "lora_r": 4, "lora_target_modules": ["q_proj", "v_proj"]},
    "lora_dropout": 0.1,
}
RUN = {
    **{"schema": 1, "plugin": "traces_progressive"},
    "model_name_or_path": "package://hf_rlhf_classic/tiny_base",
    "dataset": {"name": "tastes", "form": "sft", "train_rows": 64, "test_rows": 8},
    "evaluation": {"rows": 8, "batch_size": 8, "samples": 0},
    "phases": [
        {"name": "first", "max_steps": 4},
        {"name": "second", "max_steps": 8, "dataset": {"train_rows": 48}},
        {"name": "third", "max_steps": 4, "learning_rate": 5e-4, "dataset": {"train_rows": 32}},
    ],
    **{"per_device_train_batch_size": 8, "learning_rate": 1e-3, "max_length": 128},
    **{"use_cpu": True, "bf16": False, "activation_checkpointing": False},
    **{"dataloader_pin_memory": False, "logging_steps": 1, "save_steps": 2, "seed": 42},
    "card": {"title": "In phases", "license": "apache-2.0"},
}


def run_file(folder: Path, **settings: Any) -> Path:
    file = folder / "run.yaml"
    content = {**RUN, "output_dir": str(folder / "out"), **settings}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return file


def command(file: Path, *options: str, launch: tuple[str, ...] = ()) -> list[str]:
    start = ("-m", "accelerate.commands.launch", "--main_process_port", "0", *launch)
    train = ("-m", "hf_rlhf.train", "--config", str(file))
    return [sys.executable, *(start if launch else ()), *train, *options]


def train(
    *arguments: Any, status: int = 0, env: dict[str, str] | None = None, **others: Any
) -> str:
    done = subprocess.run(
        command(*arguments, **others),
        env=env or launch_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def record(folder: Path) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return recorded


def kill_when(file: Path, file_seen: Path, number: signal.Signals) -> None:
    """Start the run and end it as soon as a checkpoint is whole."""
    with subprocess.Popen(
        command(file),
        env=launch_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not file_seen.exists():
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        process.send_signal(number)


def same_weights(path: Path, other: Path) -> bool:
    from safetensors.torch import load_file

    actual, expected = load_file(path), load_file(other)
    return actual.keys() == expected.keys() and all(
        actual[name].equal(tensor) for name, tensor in expected.items()
    )


@pytest.fixture(scope="module", params=["full", "lora"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    train(run_file(folder, **(LORA if request.param == "lora" else {})))
    return request.param, folder / "out"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_in_a_phase_it_goes_on_there_and_ends_with_the_same_weights(
    number: signal.Signals, unbroken: tuple[str, Path], tmp_path: Path
) -> None:
    kind, whole = unbroken
    file = run_file(tmp_path, **(LORA if kind == "lora" else {}))
    out = tmp_path / "out"
    kill_when(file, out / "phases/2-second/checkpoints/checkpoint-4/manifest.json", number)
    assert not (out / "phases/3-third/run.json").exists()
    before = (out / "phases/1-first/run.json").stat().st_mtime_ns
    output = train(file)
    assert "phase 1 of 3, first: already done" in output
    assert "resuming from " + str(out / "phases/2-second/checkpoints/checkpoint-") in output
    assert (out / "phases/1-first/run.json").stat().st_mtime_ns == before
    assert same_weights(out / "merged/model.safetensors", whole / "merged/model.safetensors")
    if kind == "lora":
        name = "adapter/adapter_model.safetensors"
        assert same_weights(out / name, whole / name)
    recorded, expected = record(out)["training"], record(whole)["training"]
    assert (recorded["steps"], recorded["planned_steps"]) == (16, 16)
    assert [entry.get("loss") for entry in recorded["history"]] == [
        entry.get("loss") for entry in expected["history"]
    ]
    again = train(file)
    assert "is finished: nothing is left to train" in again
    # What a finished phase began with may be gone.
    if number == signal.SIGTERM:
        shutil.rmtree(out / "phases/1-first/merged")
        shutil.rmtree(out / "phases/1-first/adapter", ignore_errors=True)
        shutil.rmtree(out / "phases/3-third")
        for name in ("run.json", "README.md", "config.yaml", "training_curves.png"):
            (out / name).unlink()
        for name in ("evaluation", "merged", "adapter"):
            shutil.rmtree(out / name, ignore_errors=True)
        output = train(file)
        assert "phase 2 of 3, second: already done" in output
        assert same_weights(out / "merged/model.safetensors", whole / "merged/model.safetensors")


def test_what_the_last_phase_lacks_is_said_before_the_first_begins(tmp_path: Path) -> None:
    phases = [*RUN["phases"][:2], {"name": "third", "dataset": {"form": "nothing"}}]
    output = train(run_file(tmp_path, phases=phases), status=2)
    assert "phase third: run.yaml:" in output
    assert "nothing" in output
    assert not (tmp_path / "out/phases/1-first/run.json").exists()
    mixed = [{**RUN["phases"][0], "use_peft": True, "lora_target_modules": ["q_proj"]}]
    output = train(run_file(tmp_path, phases=[*mixed, RUN["phases"][1]]), status=2)
    assert "`use_peft` differs between phases" in output


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    local_hub = pytest.importorskip("hf_rlhf_local_hub")
    with local_hub.serve(tmp_path / "hub") as running:
        yield running
