"""What a phase begins with: what the one before has saved, as it was, or its newest checkpoint."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.runs.phases import Phase
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.storage.record_schema import Environment
from hf_rlhf.training import phase_start, speed
from hf_rlhf.training.phase_start import note_saved, starting_from


@pytest.fixture
def before(tmp_path: Path) -> Phase:
    """Return a finished phase with a saved model and two checkpoints."""
    link = made(tmp_path, 1, "first")
    for name in ("merged", "checkpoints/checkpoint-2", "checkpoints/checkpoint-4"):
        folder = link.folder / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
        if name != "merged":
            seal(folder)
    note_saved(link.folder, adapted=False)
    return link


def made(folder: Path, number: int, name: str) -> Phase:
    values = {"plugin": "sft", "output_dir": str(folder / f"phases/{number}-{name}")}
    return Phase(number, name, RunFile.from_mapping(values), {})


def start(before: Phase, tmp_path: Path) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    found = phase_start.phase_start(made(tmp_path, 2, "second"), before, False, said.append)
    return found, said


def test_the_first_phase_begins_with_the_base_and_the_next_with_what_was_saved(
    before: Phase, tmp_path: Path
) -> None:
    assert phase_start.phase_start(before, None, False, print) is None
    assert start(before, tmp_path) == (before.folder / "merged", [])


def test_a_saved_model_that_changed_is_passed_over_for_the_newest_checkpoint(
    before: Phase, tmp_path: Path
) -> None:
    (before.folder / "merged/model.safetensors").write_bytes(b"Weights of merged")
    found, said = start(before, tmp_path)
    assert found == before.folder / "checkpoints/checkpoint-4"
    assert "model.safetensors" in said[0]
    (found / "model.safetensors").write_bytes(b"other")
    found, _ = start(before, tmp_path)
    assert found == before.folder / "checkpoints/checkpoint-2"


def test_without_any_checkpoint_that_holds_the_phase_is_to_be_trained_again(
    before: Phase, tmp_path: Path
) -> None:
    (before.folder / "merged/config.json").unlink()
    for number in (2, 4):
        (before.folder / f"checkpoints/checkpoint-{number}/manifest.json").unlink()
    with pytest.raises(ModelError, match=r"Delete .*1-first to train it again"):
        start(before, tmp_path)


def test_a_phase_that_began_with_something_else_is_refused(
    before: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path, 2, "second").folder
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({}))
    config = {"model_name_or_path": str(before.folder / "merged")}
    monkeypatch.setattr(phase_start, "load_record", lambda _: RunRecord(config=config))
    assert start(before, tmp_path)[0] == before.folder / "merged"
    (before.folder / "merged/model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="is not as it was"):
        start(before, tmp_path)


def test_an_adapter_stays_on_its_base_and_weights_become_the_model(tmp_path: Path) -> None:
    file = RunFile.from_mapping({"model_name_or_path": "base", "model_revision": "v1"})
    adapted = starting_from(file, tmp_path, True).values
    assert (adapted["model_name_or_path"], adapted["adapter"]) == ("base", str(tmp_path))
    assert adapted["model_revision"] == "v1"
    whole = starting_from(file, tmp_path, False).values
    assert whole["model_name_or_path"] == str(tmp_path)
    assert "model_revision" not in whole


def test_the_speed_of_another_phase_is_taken_by_its_tokens_and_of_the_same_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Environment(cpu="one")
    training = {"steps": 10, "seconds": 20.0, "world_size": 1, "history": [{"num_tokens": 4000}]}
    records = {tmp_path / "other": RunRecord(environment=machine, training=training)}

    def load(folder: Path) -> Any:
        if folder not in records:
            raise RunFolderError("none")
        return records[folder]

    monkeypatch.setattr(speed, "load_record", load)
    monkeypatch.setattr(speed, "environment", lambda: machine)
    batch = SimpleNamespace(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    dataset = {"train": range(16)}
    run: Any = SimpleNamespace(folder=tmp_path / "own", training=batch, dataset=dataset)
    found = speed._recorded(run, {"tokens": 1000}, [tmp_path / "other"])
    # 200 tokens a second; 1000 tokens in the two steps of an epoch.
    assert found is not None
    assert found.seconds_a_step == pytest.approx(2.5)
    records[run.folder] = RunRecord(environment=machine, training={**training, "seconds": 5.0})
    own = speed._recorded(run, {"tokens": 1000}, [])
    assert own is not None
    assert own.seconds_a_step == 0.5
    records.pop(run.folder)
    monkeypatch.setattr(speed, "environment", lambda: Environment(cpu="another"))
    assert speed._recorded(run, {"tokens": 1000}, [tmp_path / "other"]) is None


def test_a_finished_phase_is_done_whatever_became_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = made(tmp_path, 2, "second")
    link.folder.mkdir(parents=True)
    (link.folder / "run.json").write_text("{}")
    differs = ["model_name_or_path: 'gone' -> 'base'", "adapter's weights: 'a' -> None"]
    monkeypatch.setattr(phase_start, "differences", lambda record, run: differs)
    run: Any = object()
    for status, done in (("finished", True), ("interrupted", False)):
        record = RunRecord(status=status)
        monkeypatch.setattr(phase_start, "load_record", lambda _, record=record: record)
        assert phase_start.is_finished(link, run) is done
    monkeypatch.setattr(phase_start, "load_record", lambda _: RunRecord(status="finished"))
    differs.append("rows: {'train': 4} -> {'train': 5}")
    assert not phase_start.is_finished(link, run)
