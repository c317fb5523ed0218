"""Disk space: free space, size of a save, errors of a full disk."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DiskError, HfRlhfError, causes

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# torch's zip writer reports a short write without the cause.
_WRITER_TEXTS = ("unexpected pos", "PytorchStreamWriter failed", "iostream error")
_SQLITE = (8, 10, 13, 14)  # read-only, I/O error, full, cannot be opened
_TOKEN = 110  # bytes of tokenizer.json for one token: 75 (Qwen3) to 134 (Llama 3)
_SMALL = 64 * 1024  # configuration, state, random states, and the last block of each file
# State values of optimizers per trained number, if not AdamW's two.
_MOMENTS = {"adafactor": 0, "sgd": 1, "lion": 1, "rmsprop": 1, "adagrad": 1}


def free_bytes(folder: Path) -> int:
    """Return the free space for a user without privileges in `folder` or its nearest parent."""
    disk = os.statvfs(_existing(folder))
    return disk.f_bavail * disk.f_frsize


def human(size: float) -> str:
    """Return a size in a readable unit: 3.2 GiB, 14.0 MiB, 97 KiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.0f} KiB"


def taken_bytes(folder: Path) -> int:
    """Return the bytes that the files under `folder` use on disk.

    Another process may delete files meanwhile.
    """
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def checkpoint_bytes(model: Any, tokenizer: Any, training: Any, sharding: str | None = None) -> int:
    """Estimate the bytes of a checkpoint of `model`: weights, optimizer, small files.

    Only shapes and dtypes are read, so a model on the meta device suffices. DeepSpeed's ranks
    together write the weights once more, and a master copy with its moments in float32; FSDP's
    ranks write weights and moments in float32. `sharding` is the plan's: DEEPSPEED or FSDP.
    """
    saved = weights_bytes(model)
    optimizer = optimizer_bytes(model, training)
    numbers = sum(_numel(tensor) for tensor in model.parameters() if tensor.requires_grad)
    launched = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
    if sharding == "DEEPSPEED" or launched or getattr(training, "deepspeed", None):
        optimizer = numbers * 12 + saved
    elif sharding == "FSDP":
        optimizer = max(optimizer, numbers * 12 - saved)
    return saved + optimizer + small_bytes(tokenizer)


def optimizer_bytes(model: Any, training: Any) -> int:
    """Return the bytes of optimizer state per trained number, without DeepSpeed."""
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    width = max((tensor.element_size() for tensor in trained), default=4)
    name = str(getattr(training.optim, "value", training.optim))
    moments = next((n for key, n in _MOMENTS.items() if key in name), 2)
    return sum(map(_numel, trained)) * moments * (1 if "8bit" in name else width)


def weights_bytes(model: Any) -> int:
    """Return the bytes of the saved weights: for an adapted model, only the trained weights."""
    adapted = _adapted(model)
    return sum(
        _numel(tensor) * tensor.element_size()
        for tensor in model.parameters()
        if tensor.requires_grad or not adapted
    )


def final_bytes(model: Any, tokenizer: Any, width: int | None = None) -> int:
    """Return the bytes written at the end of a run: the adapter, if any, and full weights.

    Full weights have `width` bytes per number, by default as in `model`.
    """
    full = sum(
        _numel(tensor) * (width or tensor.element_size())
        for name, tensor in model.named_parameters()
        if "lora_" not in name
    )
    adapter = weights_bytes(model) + small_bytes(tokenizer) if _adapted(model) else 0
    return full + small_bytes(tokenizer) + adapter


def small_bytes(tokenizer: Any) -> int:
    """Return the bytes of other files in a save: tokenizer, configuration, state."""
    return _SMALL + _TOKEN * (len(tokenizer) if hasattr(tokenizer, "__len__") else 0)


def _adapted(model: Any) -> bool:
    return bool(getattr(model, "peft_config", None))


def _numel(parameter: Any) -> int:
    # Under ZeRO-3 a parameter is empty here and carries its size in ds_numel.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def write_failure(error: BaseException) -> str | None:
    """Return why a disk refused a write, or None if `error` has another cause.

    Checks all causes of `error`. OSErrors have an errno; torch, safetensors and SQLite have their
    own errors, with or without the system's message.
    """
    return next((failure for cause in causes(error) if (failure := _failure(cause))), None)


def _failure(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        label = f" ({error.filename})" if error.filename else ""
        return os.strerror(error.errno) + label
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _SQLITE:
        return f"a database: {error}"
    text = str(error)
    for number in _UNWRITABLE:
        # Messages of Rust and torch.
        if f"(os error {number})" in text or f"strerror: {os.strerror(number)}" in text:
            return os.strerror(number)
    return "a file was cut short" if any(words in text for words in _WRITER_TEXTS) else None


def disk_error(
    error: BaseException, folder: Path, newest: Path | None = None, command: str | None = None
) -> DiskError | None:
    """Return a DiskError with the fix if a disk is the cause of `error`, else None.

    `folder` is the run's, `newest` its newest valid checkpoint, `command` continues the run.
    Without a command nothing has started, and nothing is lost.
    """
    if isinstance(error, DiskError):
        message = str(error)
    elif (reason := write_failure(error)) is not None:
        message = f"A write failed: {reason}. {folder} has {human(free_bytes(folder))} free."
    else:
        return None
    if command is None:
        return DiskError(f"{message}\nFree space, then run the same command again.")
    safe = f"Training is safe up to {newest}" if newest else "No checkpoint has been completed"
    return DiskError(f"{message}\n{safe}. Free space, then continue with:\n  {command}")


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Convert failed writes inside the block to a DiskError; other errors are unchanged."""
    try:
        yield
    except HfRlhfError:
        raise
    except Exception as error:
        if (message := disk_error(error, folder)) is None:
            raise
        raise message from error


def delete(folder: Path, first: str) -> None:
    """Delete `folder`, its file `first` before all others; it may already be gone."""
    (folder / first).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
