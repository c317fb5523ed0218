"""Whole runs that are killed, told to stop, or lose their judge, and go on as if nothing was."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import torch
from safetensors.torch import load_file

from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.data.messages import text_of
from hf_rlhf.errors import JudgeError
from hf_rlhf.storage.checkpoints import valid_checkpoints
from hf_rlhf.storage.record import load_record

pytestmark = pytest.mark.slow

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]


@dataclass
class Letters:
    """Scores what a completion says, until the call at which it fails."""

    fails_at: ClassVar[int | None] = None
    failure: ClassVar[type[BaseException]] = JudgeError
    calls: int = field(default=0, init=False)

    def __call__(self, prompts, completions, **_):
        self.calls += 1
        if self.calls == self.fails_at:
            raise self.failure("the judge at http://localhost:1 is down")
        return [float(text_of(completion).count("e")) for completion in completions]


def steps_of(run) -> list[str]:
    folder = Path(run["output_dir"]) / "checkpoints"
    return [path.name for path in valid_checkpoints(folder)]


@pytest.mark.parametrize(
    ("settings", "steps", "call", "kept", "failure"),
    [
        (
            *({"steps_per_generation": 2, "num_iterations": 2}, 12, 3, "checkpoint-8"),
            JudgeError,
        ),
        # Between two generations of one optimizer step: half of its gradient is lost, no weight.
        (
            *({"gradient_accumulation_steps": 4, "steps_per_generation": 1}, 3, 7, "checkpoint-1"),
            KeyboardInterrupt,
        ),
    ],
)
def test_what_stops_a_generation_loses_no_step(
    tiny_run, offer, tmp_path, settings, steps, call, kept, failure, monkeypatch
):
    offer("rewards", letters=Letters)
    tiny_run |= {"rewards": [{"name": "letters"}], "evaluation": None, "save_steps": 100}
    tiny_run |= {"lora_dropout": 0.1, "max_completion_length": 24, "max_steps": steps}
    tiny_run |= {"prompts_per_step": None, "per_device_train_batch_size": 4, **settings}
    train(config=tiny_run, output_dir=str(tmp_path / "whole"))

    monkeypatch.setattr(Letters, "failure", failure)
    monkeypatch.setattr(Letters, "fails_at", call)
    with pytest.raises(failure, match="is down") as stopped:
        train(config=tiny_run)
    assert steps_of(tiny_run) == [kept]
    assert kept in stopped.value.__notes__[0]
    assert "same command resumes" in stopped.value.__notes__[0]
    monkeypatch.setattr(Letters, "fails_at", None)
    record = train(config=tiny_run)

    step = int(kept.split("-")[1])
    ended = "failed" if failure is JudgeError else "interrupted"
    assert [(one.status, one.from_step) for one in record.sessions] == [
        (ended, 0),
        ("finished", step),
    ]
    whole = load_file(tmp_path / "whole" / "adapter" / "adapter_model.safetensors")
    resumed = load_file(Path(tiny_run["output_dir"], "adapter", "adapter_model.safetensors"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert any(whole[name].abs().max() > 0 for name in whole if "lora_B" in name)
    unlike = load_record(tmp_path / "whole").training.history
    assert [entry["num_tokens"] for entry in unlike if "num_tokens" in entry] == [
        entry["num_tokens"] for entry in record.training.history if "num_tokens" in entry
    ]


def test_a_share_of_the_kill_matrix(tmp_path):
    script = Path(__file__).parents[2] / "experiments" / "kill_matrix" / "run.py"
    done = subprocess.run(
        [sys.executable, script, "--folder", tmp_path / "runs", "--kills", "2", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| LoRA | 1 | 2 | 2 |" in done.stdout


def test_the_worker_ends_with_its_launcher_and_the_same_command_goes_on(tiny_run, tmp_path):
    """accelerate's launcher of one process passes nothing on."""
    tiny_run |= {"steps_per_generation": 2, "num_iterations": 2, "save_steps": 100}
    tiny_run |= {"prompts_per_step": None, "per_device_train_batch_size": 4, "evaluation": None}
    tiny_run |= {"max_steps": 300, "output_dir": str(tmp_path / "run")}
    path = tmp_path / "my.yaml"
    path.write_text(RunFile.from_mapping(tiny_run).to_yaml())
    log = tmp_path / "log"
    reached = 0
    for number, told in ((signal.SIGTERM, "SIGTERM"), (signal.SIGKILL, "SIGKILL")):
        with log.open("w") as output:
            launcher = subprocess.Popen(
                [*LAUNCH, "--num_processes", "1", "-m", "hf_rlhf.train", "--config", path],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        while f"step {reached + 6:>3}/300" not in log.read_text():
            assert launcher.poll() is None, log.read_text()
        workers = psutil.Process(launcher.pid).children(recursive=True)
        assert workers
        launcher.send_signal(number)
        launcher.wait()
        gone, alive = psutil.wait_procs(workers, timeout=40)
        assert not alive, f"trained on after {told}"
        assert "stopped, as its launcher has ended" in log.read_text()
        record = load_record(tmp_path / "run")
        assert record.status == "interrupted"
        reached = record.training.steps
        assert reached % 4 == 0
        assert steps_of(tiny_run)[-1] == f"checkpoint-{reached}"
    assert [one.from_step for one in record.sessions][1] > 0


def test_evaluations_change_nothing_of_the_training(tiny_run, offer, tmp_path):
    """They sample too, and the next completions are still those that would have been sampled."""
    offer("rewards", letters=Letters)
    tiny_run |= {"rewards": [{"name": "letters"}], "lora_dropout": 0.1, "max_completion_length": 24}
    tiny_run |= {"max_steps": 4, "evaluation": {"rows": 2}, "num_iterations": 2, "save_steps": 2}
    train(config=tiny_run, output_dir=str(tmp_path / "without"))
    evaluated = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    record = train(config=tiny_run | evaluated)
    logged = [e["step"] for e in record.training.history if "eval_held_out/total" in e]
    assert logged == [0, 1, 2, 3, 4]
    without, with_evaluations = (
        load_file(Path(folder, "adapter", "adapter_model.safetensors"))
        for folder in (tmp_path / "without", tiny_run["output_dir"])
    )
    assert all(torch.equal(without[name], with_evaluations[name]) for name in without)
    assert any(without[name].abs().max() > 0 for name in without if "lora_B" in name)
