"""Which checkpoints are trusted, which are kept, and that training ends where it was to end."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_rlhf.checkpoints import (
    AlreadyTrained,
    SealCheckpoints,
    StopIfTrained,
    cycle_in_steps,
    is_valid,
    seal,
    valid_checkpoints,
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


@pytest.mark.parametrize("manifest", ["", "[]", "{", '{"model.safetensors": "7"}', '["x"]'])
def test_a_damaged_manifest_proves_nothing(tmp_path, manifest):
    checkpoint = made(tmp_path, 1)
    (checkpoint / "manifest.json").write_text(manifest)
    assert not is_valid(checkpoint)


def test_checkpoints_are_ordered_by_step_and_the_rest_left_out(tmp_path):
    for step in (10, 9, 100):
        made(tmp_path, step)
    made(tmp_path, 200, sealed=False)
    (tmp_path / "runs").mkdir()
    assert [path.name for path in valid_checkpoints(tmp_path)] == [
        *("checkpoint-9", "checkpoint-10", "checkpoint-100")
    ]
    assert valid_checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("keep", "left"), [(None, [1, 2, 3]), (0, [1, 2, 3]), (1, [3]), (2, [2, 3])]
)
def test_old_checkpoints_go_once_the_new_one_is_sealed(tmp_path, keep, left):
    for step in (1, 2):
        made(tmp_path, step)
    made(tmp_path, 3, sealed=False)
    args = SimpleNamespace(output_dir=str(tmp_path))
    state = SimpleNamespace(is_world_process_zero=True, global_step=3)
    SealCheckpoints(keep).on_save(args, state, None)
    assert [int(path.name.split("-")[1]) for path in valid_checkpoints(tmp_path)] == left


@pytest.mark.parametrize(
    ("accumulation", "per_generation", "iterations", "steps"),
    [(1, None, 1, 1), (4, 4, 1, 1), (4, 8, 1, 2), (4, 4, 3, 3), (4, 2, 1, 1), (4, 6, 1, 3)],
)
def test_a_generation_cycle_in_optimizer_steps(accumulation, per_generation, iterations, steps):
    training = SimpleNamespace(
        gradient_accumulation_steps=accumulation,
        steps_per_generation=per_generation,
        num_iterations=iterations,
    )
    assert cycle_in_steps(training) == steps


def test_no_step_is_begun_when_all_are_done():
    def begin(step: int, planned: int) -> None:
        state = SimpleNamespace(global_step=step, max_steps=planned)
        StopIfTrained().on_train_begin(None, state, None)

    begin(0, 3)
    begin(2, 3)
    with pytest.raises(AlreadyTrained):
        begin(3, 3)
