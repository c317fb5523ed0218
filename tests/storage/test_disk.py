"""Sizes that are counted before anything is written, and what a disk says when it is full."""

import errno
import json
import resource
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ConfigError, DataError, DiskError, RunFolderError
from hf_rlhf.runs import estimate
from hf_rlhf.runs.resolve import resolve_run
from hf_rlhf.storage.disk import (
    checkpoint_bytes,
    disk_error,
    final_bytes,
    free_bytes,
    small_bytes,
    taken_bytes,
    write_failure,
)
from hf_rlhf.storage.files import atomic_dir, atomic_file, atomic_write_text, clear_unfinished


@contextmanager
def file_limit(size: int):
    """Refuse to make files larger than `size`, as a quota does; needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def save_json(folder: Path) -> None:
    with (folder / "state.json").open("w") as file:
        json.dump(list(range(100_000)), file)


def save_rows(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "verdicts.sqlite")) as database:
        database.execute("CREATE TABLE verdicts (verdict TEXT)")
        database.execute("INSERT INTO verdicts VALUES (?)", ("x" * 100_000,))
        database.commit()


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: torch.save(torch.zeros(50_000), folder / "optimizer.pt"),
        lambda folder: torch.save(torch.zeros(1), folder / "scheduler.pt"),
        lambda folder: save_file({"a": torch.zeros(50_000)}, folder / "model.safetensors"),
        lambda folder: atomic_write_text(folder / "run.json", "x" * 100_000),
        save_json,
        save_rows,
    ],
    ids=["torch", "small torch", "safetensors", "atomic", "json", "sqlite"],
)
def test_every_writer_that_a_disk_refuses_is_understood(tmp_path, write):
    with file_limit(1000), pytest.raises(Exception) as caught:  # noqa: PT011 - each has its own
        write(tmp_path)
    assert write_failure(caught.value) is not None


def test_a_cause_deep_in_the_chain_is_found():
    try:
        try:
            raise OSError(errno.EDQUOT, "short", "/data/x.json")
        except OSError as error:
            raise ValueError("could not prepare the data") from error
    except ValueError as error:
        several = ExceptionGroup("two rewards", [KeyError("a"), error])
    assert "/data/x.json" in write_failure(several)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        DataError("row 7: File too large"),
        RuntimeError("PytorchStreamReader failed reading zip archive: inline_container.cc:145"),
    ],
)
def test_other_errors_are_left_alone(error, tmp_path):
    assert write_failure(error) is None
    assert disk_error(error, tmp_path, None, "train") is None


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
        "[enforce fail at inline_container.cc:747] . open file failed with strerror: "
        "No space left on device",
        "Error while serializing: I/O error: No space left on device (os error 28)",
    ],
)
def test_errors_without_a_number_are_known_by_their_words(text):
    assert write_failure(RuntimeError(text)) is not None


def test_the_message_says_what_is_free_what_is_safe_and_how_to_go_on(tmp_path):
    full = OSError(errno.ENOSPC, "No space left on device")
    told = str(disk_error(full, tmp_path, tmp_path / "checkpoint-7", "python -m x"))
    assert "No space left on device" in told
    assert " free" in told
    assert f"Training is safe up to {tmp_path / 'checkpoint-7'}." in told
    assert told.endswith("continue with:\n  python -m x")
    told = str(disk_error(DiskError("does not fit: 1 GiB"), tmp_path, None, "python -m x"))
    assert told.startswith("does not fit: 1 GiB\nNo checkpoint has been completed.")


def test_space_is_of_the_nearest_folder_that_exists(tmp_path):
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(free_bytes(tmp_path), 0.1)


def small_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 256))


def training(optim: str = "adamw_torch") -> SimpleNamespace:
    return SimpleNamespace(optim=optim, deepspeed=None)


@pytest.mark.parametrize(
    ("name", "optimizer", "dtype"),
    [
        ("adamw_torch", torch.optim.AdamW, torch.bfloat16),
        ("rmsprop", torch.optim.RMSprop, torch.float32),
    ],
)
def test_a_checkpoint_takes_what_was_counted(tmp_path, name, optimizer, dtype):
    model = small_model().to(dtype)
    model[0].weight.requires_grad = False
    stepping = optimizer([item for item in model.parameters() if item.requires_grad])
    model(torch.ones(1, 256, dtype=dtype)).sum().backward()
    stepping.step()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.save(stepping.state_dict(), tmp_path / "optimizer.pt")
    counted = checkpoint_bytes(model, None, training(name)) - small_bytes(None)
    assert counted == pytest.approx(taken_bytes(tmp_path), rel=0.03)


def test_of_an_adapted_model_only_what_is_trained_is_saved():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(small_model(), LoraConfig(r=4, target_modules=["0"]))
    adapter = 4 * (256 + 512) * 4
    whole = (256 * 512 + 512 + 512 * 256 + 256) * 4
    beside = small_bytes(None)
    assert checkpoint_bytes(model, None, training()) == adapter * 3 + beside
    assert final_bytes(model, None) == whole + beside + adapter + beside
    assert final_bytes(model, None, width=2) == whole // 2 + beside + adapter + beside


def test_what_killed_writers_left_is_cleared_and_a_replaced_folder_comes_back(tmp_path):
    name = "0123456789abcdef" * 2
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / f".before.json.{name}.tmp").write_text("{")
    (tmp_path / f".merged.{name}.tmp").mkdir()
    (tmp_path / f".merged.{name}.tmp" / "model.safetensors").write_text("half")
    (tmp_path / f".adapter.{name}.old").mkdir()
    (tmp_path / f".adapter.{name}.old" / "kept").write_text("whole")
    (tmp_path / ".lock").write_text("")
    (tmp_path / "run.json").write_text("{}")
    clear_unfinished(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".lock", "adapter/kept", "run.json"]


def test_a_file_and_a_folder_that_cannot_be_written_stay_as_they_were(tmp_path):
    path = tmp_path / "run.json"
    atomic_write_text(path, "old")
    with file_limit(1000), pytest.raises(RunFolderError, match="File too large"):
        atomic_write_text(path, "new" * 1000)
    with (
        file_limit(1000),
        pytest.raises(RunFolderError, match="File too large"),
        atomic_dir(tmp_path / "merged") as folder,
    ):
        (folder / "model.safetensors").write_bytes(b"0" * 2000)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_a_run_that_cannot_end_does_not_begin_and_what_lies_there_counts_as_free(
    tiny_run, monkeypatch
):
    file = RunFile.from_mapping(tiny_run)
    monkeypatch.setattr(estimate, "free_bytes", lambda _: 4 * 10**6)
    with pytest.raises(ConfigError, match=r"output_dir: .*run needs about .* at the end\), but"):
        resolve_run(file)
    monkeypatch.setattr(estimate, "taken_bytes", lambda _: 2 * 10**6)
    run = resolve_run(file)

    need = estimate.disk_need(run, 10)
    assert (need.saves, need.at_once) == (10, 10)
    # The shipped policy has 4.2 MB of weights; the adapter and its moments are far smaller.
    assert 4_204_808 < need.end < 4_204_808 * 1.2
    assert need.checkpoint < 400_000
    run.training.save_total_limit = 2
    assert estimate.disk_need(run, 10).at_once == 3
    assert estimate.disk_need(run, 1).at_once == 1
    run.training.save_steps = 0.25
    assert estimate.disk_need(run, 10).saves == 4
    run.training.save_strategy = "no"
    assert estimate.disk_need(run, 10).total == need.end
    monkeypatch.setattr(run.trainer_class, "extra_disk_bytes", lambda _: 1000)
    assert estimate.disk_need(run, 10).total == need.end + 1000


@pytest.mark.parametrize(
    "error", [ConnectionError("the Hub does not answer"), OSError(errno.ENOSPC, "full", "/cache/x")]
)
def test_an_error_of_something_else_is_not_laid_to_the_file(error, tmp_path):
    def write():
        with atomic_file(tmp_path / "rows.jsonl") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)) as raised:
        write()
    assert raised.value is error
    assert list(tmp_path.iterdir()) == []
