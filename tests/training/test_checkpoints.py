"""Which checkpoints are trusted, which are kept, and that training ends where it was to end."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hf_rlhf.errors import DiskError, RunFolderError
from hf_rlhf.storage.checkpoints import (
    discard_unsealed,
    is_valid,
    prune,
    seal,
    valid_checkpoints,
)
from hf_rlhf.training import checkpoints
from hf_rlhf.training.checkpoints import (
    AlreadyTrained,
    CheckpointManifestCallback,
    StopIfTrained,
    newest_valid,
)


def made(folder: Path, step: int, *, sealed: bool = True) -> Path:
    """Make a checkpoint folder."""
    checkpoint = folder / f"checkpoint-{step}"
    (checkpoint / "global_step").mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    (checkpoint / "global_step" / "optim.pt").write_bytes(b"moments")
    if sealed:
        seal(checkpoint)
    return checkpoint


def test_a_checkpoint_is_valid_only_whole_and_sealed(tmp_path):
    checkpoint = made(tmp_path, 1, sealed=False)
    assert not is_valid(checkpoint)
    seal(checkpoint)
    assert is_valid(checkpoint)
    (checkpoint / "global_step" / "optim.pt").write_bytes(b"mom")
    assert not is_valid(checkpoint)
    (checkpoint / "global_step" / "optim.pt").unlink()
    assert not is_valid(checkpoint)


def test_what_is_sealed_is_on_the_disk_before_the_manifest_says_so(tmp_path, monkeypatch):
    """Else a power cut could leave a manifest that stands beside files without content."""
    checkpoint = made(tmp_path, 1, sealed=False)
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: done.append(os.fstat(fd).st_ino) or sync(fd))
    monkeypatch.setattr(os, "replace", lambda *a: done.append("named") or replace(*a))
    seal(checkpoint)
    named = done.index("named")
    content = [path.stat().st_ino for path in checkpoint.rglob("*") if path.name != "manifest.json"]
    assert len(content) == 3
    assert {*content, checkpoint.stat().st_ino} <= set(done[:named])
    assert (checkpoint / "manifest.json").stat().st_ino in done[:named]
    assert {checkpoint.stat().st_ino, tmp_path.stat().st_ino} <= set(done[named:])


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "[]",
        '{"model.safetensors": 7}',
        '{"model.safetensors": {"size": "7"}}',
    ],
)
def test_a_damaged_manifest_proves_nothing(tmp_path, manifest):
    checkpoint = made(tmp_path, 1)
    (checkpoint / "manifest.json").write_text(manifest)
    assert not is_valid(checkpoint)


@pytest.mark.parametrize(("keep", "left"), [(None, [1, 2, 3]), (2, [2, 3])])
def test_old_checkpoints_go_once_the_new_one_is_sealed(tmp_path, keep, left):
    for step in (1, 2):
        made(tmp_path, step)
    made(tmp_path, 3, sealed=False)
    args = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(is_world_process_zero=True, global_step=3)
    CheckpointManifestCallback(keep).on_save(args, state, None)
    assert steps(valid_checkpoints(tmp_path)) == left


def steps(found) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in found)


def test_what_failed_saves_left_goes_once_a_newer_checkpoint_stands(tmp_path):
    for step in (1, 3, 5):
        made(tmp_path, step, sealed=False)
    damaged = made(tmp_path, 2)
    (damaged / "model.safetensors").write_bytes(b"cut")
    (tmp_path / "runs").mkdir()
    prune(tmp_path, 1)
    # Nothing is whole, so nothing is deleted: it may be all that a user has.
    assert steps(tmp_path.glob("checkpoint-*")) == [1, 2, 3, 5]
    made(tmp_path, 4)
    prune(tmp_path, 0)
    assert steps(tmp_path.glob("checkpoint-*")) == [4, 5]
    discard_unsealed(tmp_path)
    assert steps(tmp_path.glob("checkpoint-*")) == [4]
    assert (tmp_path / "runs").exists()


def test_at_whatever_byte_a_save_stops_the_checkpoint_before_it_is_the_newest(tmp_path):
    before, whole = made(tmp_path, 1), made(tmp_path, 2)
    content = {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*.*")}
    manifest = content.pop(Path("manifest.json"))
    # The manifest is written last, and under its name only when whole.
    for written in range(len(content) + 1):
        for cut in (True, False):
            shutil.rmtree(whole)
            whole.mkdir()
            for index, (name, data) in enumerate(list(content.items())[:written]):
                last = index == written - 1
                (whole / name).parent.mkdir(exist_ok=True)
                (whole / name).write_bytes(data[: len(data) // 2] if cut and last else data)
            assert newest_valid(tmp_path) == before
    (whole / "manifest.json").write_bytes(manifest)
    assert newest_valid(tmp_path) == whole


def test_a_checkpoint_whose_bits_have_flipped_is_passed_over_and_said(tmp_path, capsys):
    name = "global_step/optim.pt"
    before, after = made(tmp_path, 1), made(tmp_path, 2)
    content = bytearray((after / name).read_bytes())
    content[3] ^= 1
    (after / name).write_bytes(content)
    assert is_valid(after)
    assert newest_valid(tmp_path) == before
    printed = capsys.readouterr().out
    assert f"Skipped {after}: {name} changed" in printed
    assert "resuming from step 1 instead: the steps up to 2 (1) are repeated" in printed


def _cut(checkpoint):
    (checkpoint / "model.safetensors").write_bytes(b"wei")


def _torn_manifest(checkpoint):
    (checkpoint / "manifest.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_cut, "model.safetensors changed or missing since it was saved"),
        (_torn_manifest, "its manifest.json cannot be read"),
    ],
)
def test_a_newer_checkpoint_that_does_not_count_is_named_with_its_cause_and_its_steps(
    tmp_path, capsys, damage, why
):
    before, middle, last = made(tmp_path, 3), made(tmp_path, 5), made(tmp_path, 9)
    damage(last)
    assert newest_valid(tmp_path) == middle
    printed = capsys.readouterr().out
    assert f"Skipped {last}: {why}." in printed
    assert "resuming from step 5 instead: the steps up to 9 (4) are repeated" in printed
    damage(before)  # older than what is resumed from: of no concern
    damage(middle)
    assert newest_valid(tmp_path) is None
    printed = capsys.readouterr().out
    assert printed.count("Skipped ") == 3
    assert "starting from step 0: the steps up to 9 (9) are repeated" in printed


def test_a_checkpoint_with_a_foreign_file_is_skipped(tmp_path, capsys):
    """transformers reads `pytorch_model.bin` before an adapter."""
    made(tmp_path, 1)
    checkpoint = made(tmp_path, 2)
    (checkpoint / ".DS_Store").write_bytes(b"of a desktop")
    assert newest_valid(tmp_path) == checkpoint
    (checkpoint / "pytorch_model.bin").write_bytes(b"of something else")
    assert newest_valid(tmp_path) == tmp_path / "checkpoint-1"
    assert "pytorch_model.bin not in its manifest.json" in capsys.readouterr().out
    Saving(tmp_path, 2).step()
    assert not checkpoint.exists()  # or the next manifest would list that file


def test_processes_that_do_not_see_one_folder_do_not_resume_apart(tmp_path, monkeypatch):
    assert newest_valid(tmp_path) is None
    made(tmp_path, 1)
    elsewhere = tmp_path / "elsewhere" / "checkpoint-9"
    monkeypatch.setattr(checkpoints, "broadcast_object_list", lambda _: [elsewhere])
    with pytest.raises(RunFolderError, match="storage that all machines share"):
        newest_valid(tmp_path)


class Saving:
    """A training of 9 steps that is about to save the checkpoint of `step`."""

    def __init__(self, folder: Path, step: int) -> None:
        self.args = SimpleNamespace(
            output_dir=str(folder), optim="adamw_torch", ddp_timeout=1800, save_strategy="steps"
        )
        self.state = SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=9)
        self.control = SimpleNamespace(should_save=True)

    def step(self, keep: int | None = None) -> bool:
        """End the step; return whether its checkpoint will be saved."""
        callback = CheckpointManifestCallback(keep)
        callback.on_step_end(
            self.args, self.state, self.control, model=torch.nn.Linear(4, 4), processing_class=None
        )
        return self.control.should_save


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A disk that holds as many checkpoint folders as `room.folders` says."""
    disk = SimpleNamespace(folders=2, looks=0)

    def look(_) -> int:
        disk.looks += 1
        left = disk.folders - len(list(tmp_path.glob("checkpoint-*")))
        return 2**30 if left > 0 else 1000

    monkeypatch.setattr(checkpoints, "free_bytes", look)
    return disk


def test_room_is_made_of_checkpoints_only_where_the_run_file_limits_them(tmp_path, room):
    for step in (1, 2):
        made(tmp_path, step)
    with pytest.raises(DiskError, match=r"checkpoint of step 3 does not fit in .*: it takes about"):
        Saving(tmp_path, 3).step(keep=None)
    assert steps(tmp_path.glob("*")) == [1, 2]
    assert Saving(tmp_path, 3).step(keep=2)
    assert steps(tmp_path.glob("*")) == [2]


def test_when_training_is_done_its_weights_are_saved_rather_than_a_checkpoint(
    tmp_path, monkeypatch, capsys
):
    made(tmp_path, 8)
    (tmp_path / "checkpoint-8" / "optimizer.pt").write_bytes(b"0" * 2**20)
    seal(tmp_path / "checkpoint-8")
    monkeypatch.setattr(checkpoints, "free_bytes", lambda _: 2**20)
    with pytest.raises(DiskError):
        Saving(tmp_path, 8).step()
    assert not Saving(tmp_path, 9).step()
    assert "only its weights are saved" in capsys.readouterr().out
    monkeypatch.setattr(checkpoints, "free_bytes", lambda _: 2**10)
    with pytest.raises(DiskError):
        Saving(tmp_path, 9).step()


def test_no_step_is_begun_when_all_are_done():
    def begin(step: int, planned: int) -> None:
        state = SimpleNamespace(global_step=step, max_steps=planned)
        StopIfTrained().on_train_begin(None, state, None)

    begin(0, 3)
    begin(2, 3)
    with pytest.raises(AlreadyTrained):
        begin(3, 3)
