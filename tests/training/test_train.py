"""A run as its user has it: the command, the folder it leaves, and the same command again."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_rlhf import train
from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import RewardError, RunFolderError
from hf_rlhf.storage.checkpoints import valid_checkpoints
from hf_rlhf.storage.record import load_record, write_record

pytestmark = pytest.mark.slow


def written(run, tmp_path: Path) -> str:
    """Write a run to a file and return its path."""
    path = tmp_path / "my.yaml"
    path.write_text(RunFile.from_mapping(run).to_yaml())
    return str(path)


def command(*arguments: str) -> list[str]:
    """Return the command that trains, without accelerate's launcher."""
    return [sys.executable, "-m", "hf_rlhf.train", *arguments]


def test_a_run_from_python_leaves_a_folder_that_is_not_trained_twice(tiny_run, capsys):
    record = train(config=tiny_run)
    said = capsys.readouterr().out
    assert said.count("measuring before training") == said.count("measuring after training") == 1
    assert "is finished" not in said
    folder = Path(tiny_run["output_dir"])
    assert record.status == "finished"
    assert load_record(folder) == record
    assert record.training.steps == 2
    assert [entry["step"] for entry in record.training.history if "loss" in entry] == [1, 2]
    assert {"total", "refiner", "format", "completion_tokens", "truncated"} == set(
        record.evaluation.difference
    )
    assert record.evaluation.sampling["max_new_tokens"] == 8
    assert record.model.trainable_parameters < record.model.parameters
    assert {sample.stage for sample in record.samples} == {"before", "train", "after"}
    assert (folder / "README.md").read_text().startswith("---\n")
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    assert (folder / "merged" / "model.safetensors").exists()
    assert record.model.saved == ["adapter", "merged"]
    assert not list(folder.glob("*/training_args.bin"))

    # No command line made this run; its folder, and what is published of it, repeats it.
    assert record.command[-2:] == ["--config", "config.yaml"]

    weights = folder / "adapter" / "adapter_model.safetensors"
    before = weights.stat().st_mtime_ns
    told = {**record.published(), "repo_id": "me/told-later"}
    write_record(record.model_copy(update={"publish": told}), folder)
    again = train(config={**tiny_run, "card": {"intended_use": "Testing."}})
    assert "is finished: nothing is left to train" in capsys.readouterr().out
    assert weights.stat().st_mtime_ns == before
    assert again.author.intended_use == "Testing."
    assert "Testing." in (folder / "README.md").read_text()
    assert "Testing." in (folder / "config.yaml").read_text()
    assert again.publish["repo_id"] == "me/told-later"

    with pytest.raises(RunFolderError, match=r"learning_rate: 0.001 -> 0.5"):
        train(config={**tiny_run, "learning_rate": 0.5})


@pytest.mark.smoke
def test_two_processes_make_one_run(tiny_run, tmp_path):
    """One held-out row for two processes, and checkpoints that both write to."""
    tiny_run |= {"per_device_train_batch_size": 4, "evaluation": {"rows": 1}, "save_total_limit": 1}
    tiny_run |= {"expect_world_size": 2}
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    launch += ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    launch += ["--dynamo_backend", "no", "--main_process_port", "0", "-m", "hf_rlhf.train"]
    done = subprocess.run(
        [*launch, "--config", written(tiny_run, tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    folder = Path(tiny_run["output_dir"])
    record = load_record(folder)
    assert record.status == "finished"
    assert record.training.world_size == 2
    assert record.evaluation.rows == 1
    assert record.command[2:5] == ["--num_processes", "2", "--multi_gpu"]
    assert [path.name for path in valid_checkpoints(folder / "checkpoints")] == ["checkpoint-2"]


@dataclass
class FailsLater:
    """Scores a few calls, then raises."""

    calls: int = 0

    def __call__(self, prompts, completions, **_):
        self.calls += 1
        if self.calls > 2:
            raise KeyError("gold")
        return [float(len(str(completion))) for completion in completions]


def test_a_reward_that_raises_in_training_stops_with_its_name_and_keeps_the_work(tiny_run, offer):
    offer("rewards", fails_later=FailsLater)
    tiny_run["rewards"] = [{"name": "fails_later"}]
    with pytest.raises(
        RewardError, match=r"'fails_later' \(from acme 1.0\) raised KeyError: 'gold'"
    ):
        train(config=tiny_run)
    record = load_record(tiny_run["output_dir"])
    assert record.status == "failed"
    assert record.training.steps == 1
    # What was measured and seen by then is not lost.
    assert record.evaluation.before["total"].n == 4
    assert {sample.stage for sample in record.samples} == {"before", "train"}
    assert "checkpoint-1" in os.listdir(f"{tiny_run['output_dir']}/checkpoints")


def test_ctrl_c_leaves_a_record_and_the_same_command_goes_on(tiny_run, tmp_path):
    tiny_run |= {"max_steps": 6, "learning_rate": 1e-4}
    path = written(tiny_run, tmp_path)
    job = subprocess.Popen(
        command("--config", path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in job.stdout:
        if line.startswith("step 2/6"):
            job.send_signal(signal.SIGINT)
            break
    _, error = job.communicate(timeout=120)
    assert job.returncode == 130, error
    assert "The same command resumes from" in error
    folder = Path(tiny_run["output_dir"])
    assert load_record(folder).status == "interrupted"
    card = (folder / "README.md").read_text()
    assert "There is nothing to load: the run is interrupted" in card
    assert "from_pretrained" not in card

    done = subprocess.run(command("--config", path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout
    record = load_record(folder)
    assert record.status == "finished"
    assert record.training.steps == 6
    steps = [entry["step"] for entry in record.training.history if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("adapted", [True, False])
def test_ctrl_c_outside_the_training_loop_loses_nothing(tiny_run, monkeypatch, adapted):
    tiny_run |= {"evaluation": {"rows": 2}, "use_peft": adapted}
    places = [
        *("hf_rlhf.evaluation.scoring.generate", "transformers.Trainer.save_model"),
        *("hf_rlhf.training.session.save_weights", "hf_rlhf.training.recorder.reward_curve"),
    ]

    def interrupt(*_, **__):
        monkeypatch.undo()  # once: what follows is the real thing
        raise KeyboardInterrupt

    for place in places:
        monkeypatch.setattr(place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            train(config=tiny_run)
        record = load_record(tiny_run["output_dir"])
        assert record.status == "interrupted", place
        assert "nterrupted" in Path(tiny_run["output_dir"], "README.md").read_text()
    record = train(config=tiny_run)
    assert record.status == "finished"
    assert record.training.steps == 2
    losses = [entry["step"] for entry in record.training.history if "loss" in entry]
    assert losses == [1, 2]


@dataclass
class Silent:
    """Abstains from every completion."""

    def __call__(self, prompts, completions, **_):
        return [None] * len(completions)


def test_a_run_in_which_nothing_got_a_reward_is_not_finished(tiny_run, offer, capsys):
    offer("rewards", silent=Silent)
    tiny_run |= {"rewards": [{"name": "silent"}], "evaluation": None}
    for again in (False, True):
        with pytest.raises(RewardError, match="No completion of the whole training"):
            train(config=tiny_run)
        folder = Path(tiny_run["output_dir"])
        assert load_record(folder).status == "failed"
        assert valid_checkpoints(folder / "checkpoints")[-1].name == "checkpoint-2"
        assert not (folder / "merged").exists()
        assert again == ("every step is done" in capsys.readouterr().out)
