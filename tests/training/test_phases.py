"""What a phase begins with: what the one before has saved, as it was, or its newest checkpoint."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.errors import ModelError
from hf_rlhf.runs.run import Phase
from hf_rlhf.storage.checkpoints import seal
from hf_rlhf.storage.record import RunRecord
from hf_rlhf.training import phases
from hf_rlhf.training.phases import is_finished, note_saved, with_weights_of


@pytest.fixture
def before(tmp_path: Path) -> Phase:
    """Return a finished phase with a saved model and two checkpoints."""
    run = phase_run(tmp_path / "phases/1-first")
    for name in ("merged", "checkpoints/checkpoint-2", "checkpoints/checkpoint-4"):
        folder = run.folder / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights of " + name.encode())
        if name != "merged":
            seal(folder)
    note_saved(run)
    return Phase(1, "first", run)


def phase_run(folder: Path, peft: bool = False) -> Any:
    return SimpleNamespace(folder=folder, model=SimpleNamespace(use_peft=peft))


def start(before: Phase, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """Return what the phase after `before` begins with, and the lines that it prints."""
    monkeypatch.setattr(phases, "with_settings", lambda run, settings: settings)
    lines: list[str] = []
    settings, folder = with_weights_of(phase_run(Path("second")), before, lines.append)
    assert settings == {"model_name_or_path": str(folder), "model_revision": None}
    return folder, lines


def test_a_phase_begins_with_what_was_saved(before: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(before, monkeypatch) == (before.run.folder / "merged", [])


def test_an_adapter_stays_on_its_base(before: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    run = before.run
    run.model.use_peft = True
    (run.folder / "merged").rename(run.folder / "adapter")
    monkeypatch.setattr(phases, "with_settings", lambda run, settings: settings)
    settings: Any = with_weights_of(phase_run(Path("second"), peft=True), before, print)[0]
    assert settings == {"adapter": str(run.folder / "adapter"), "adapter_revision": None}


def test_a_saved_model_that_changed_is_passed_over_for_the_newest_checkpoint(
    before: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before.run.folder / "merged/model.safetensors").write_bytes(b"Weights of merged")
    found, lines = start(before, monkeypatch)
    assert found == before.run.folder / "checkpoints/checkpoint-4"
    assert "model.safetensors" in lines[0]
    (found / "model.safetensors").write_bytes(b"other")
    found, _ = start(before, monkeypatch)
    assert found == before.run.folder / "checkpoints/checkpoint-2"


def test_without_any_checkpoint_that_holds_the_phase_is_to_be_trained_again(
    before: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before.run.folder / "merged/config.json").unlink()
    for number in (2, 4):
        (before.run.folder / f"checkpoints/checkpoint-{number}/manifest.json").unlink()
    with pytest.raises(ModelError, match=r"Delete .*1-first to train it again"):
        start(before, monkeypatch)


def test_a_finished_phase_is_done_whatever_became_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text("{}")
    changes = {"model_name_or_path", "adapter's weights"}
    monkeypatch.setattr(
        phases, "differences", lambda record, run, ignored: sorted(changes - set(ignored))
    )
    for status, done in (("finished", True), ("interrupted", False)):
        record = RunRecord(status=status)
        monkeypatch.setattr(phases, "load_record", lambda _, record=record: record)
        assert is_finished(phase_run(tmp_path)) is done
    monkeypatch.setattr(phases, "load_record", lambda _: RunRecord(status="finished"))
    changes.add("rows")
    assert not is_finished(phase_run(tmp_path))
