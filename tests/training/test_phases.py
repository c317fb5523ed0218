"""What a phase begins with: what the one before has saved, as it was."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_rlhf.errors import ModelError
from hf_rlhf.runs.run import Phase
from hf_rlhf.storage.record import RunRecord, new_record, write_record
from hf_rlhf.training import phases
from hf_rlhf.training.phases import is_finished, note_saved, with_weights_of


def phase_run(folder: Path, peft: bool = False) -> Any:
    return SimpleNamespace(folder=folder, model=SimpleNamespace(use_peft=peft))


@pytest.mark.parametrize("peft", [True, False])
def test_a_phase_begins_with_what_was_saved_as_it_was(
    peft: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Phase(1, "first", phase_run(tmp_path / "phases/1-first", peft))
    saved = before.run.folder / ("adapter" if peft else "merged")
    saved.mkdir(parents=True)
    (saved / "model.safetensors").write_bytes(b"weights")
    write_record(new_record(), before.run.folder)
    note_saved(before)
    monkeypatch.setattr(phases, "with_settings", lambda run, settings: settings)
    settings, folder = with_weights_of(phase_run(Path("second"), peft), before)
    names = ("adapter", "adapter_revision") if peft else ("model_name_or_path", "model_revision")
    assert (settings, folder) == (dict(zip(names, (str(saved), None), strict=True)), saved)
    (saved / "model.safetensors").write_bytes(b"Weights")
    note_saved(before)
    with pytest.raises(ModelError, match=r"model.safetensors changed.*delete .*1-first to train"):
        with_weights_of(phase_run(Path("second"), peft), before)


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
