"""Space on disk: how much is free, how much a save takes, and which errors mean it ran out."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DiskError, HfRlhfError

WAIT = "HF_RLHF_WAIT_FOR_SPACE"
"""The environment variable that says for how many seconds a save waits for space."""
DEFAULT_WAIT = 600.0
FILES_OF_A_SAVE = 24

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# torch's zip writer reports a short write so, without the cause.
_WRITER_TEXTS = ("unexpected pos", "PytorchStreamWriter failed", "iostream error")
_SQLITE = {8: "is read-only", 10: "I/O error", 13: "is full", 14: "cannot be opened"}
_TOKEN = 110  # bytes of tokenizer.json for one token: 75 (Qwen3) to 134 (Llama 3)
_SMALL = 64 * 1024  # configuration, state, random states, and the last block of each file
# How many numbers an optimizer keeps for each that it trains, where it is not AdamW's two.
_MOMENTS = {"adafactor": 0, "sgd": 1, "lion": 1, "rmsprop": 1, "adagrad": 1}


@dataclass(frozen=True)
class Space:
    """What is free where a folder lies, for a user without privileges."""

    bytes: int
    files: int | None
    """How many more files it takes; None where the filesystem has no such limit."""

    @classmethod
    def of(cls, folder: Path) -> "Space":
        """Look at `folder`, or at the nearest folder above it that exists."""
        result = os.statvfs(_existing(folder))
        return cls(result.f_bavail * result.f_frsize, result.f_favail if result.f_files else None)

    def holds(self, size: int) -> bool:
        """Return whether a save of `size` bytes fits."""
        return self.bytes >= size and (self.files is None or self.files >= FILES_OF_A_SAVE)

    def __str__(self) -> str:
        few = self.files is not None and self.files < FILES_OF_A_SAVE
        return f"{human(self.bytes)} free" + (
            f", room for {self.files} of {FILES_OF_A_SAVE} files" if few else ""
        )


def human(size: float) -> str:
    """Return a size as people say it: 3.2 GiB, 14.0 MiB, 97 KiB."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.0f} KiB"


def taken_bytes(folder: Path) -> int:
    """Return what the files under `folder` take on disk, 0 if there is none.

    Another process may delete some meanwhile, as the first of several does that begin together.
    """
    total = 0
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def wait_seconds() -> float:
    """Return for how long a save may wait for space: HF_RLHF_WAIT_FOR_SPACE, or ten minutes."""
    try:
        return float(os.environ.get(WAIT, DEFAULT_WAIT))
    except ValueError:
        return DEFAULT_WAIT


def wait_until(fits: Callable[[], bool], seconds: float, every: float = 5.0) -> bool:
    """Ask again and again whether a save fits, for at most `seconds`; return the last answer."""
    until = time.monotonic() + seconds
    while not fits():
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(every, left))
    return True


def checkpoint_bytes(model: Any, tokenizer: Any, training: Any) -> int:
    """Return about how much a checkpoint of `model` takes: weights, optimizer and the rest.

    Only shapes and dtypes are read, so a model on torch's meta device will do. DeepSpeed's ranks
    together write the weights once more, and a master copy with its moments in float32.
    """
    saved = weights_bytes(model)
    numbers = sum(_numel(item) for item in model.parameters() if item.requires_grad)
    width = max((i.element_size() for i in model.parameters() if i.requires_grad), default=4)
    name = str(getattr(training.optim, "value", training.optim))
    moments = next((n for key, n in _MOMENTS.items() if key in name), 2)
    optimizer = numbers * moments * (1 if "8bit" in name else width)
    if getattr(training, "deepspeed", None) or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        optimizer = numbers * 12 + saved
    return saved + optimizer + small_bytes(tokenizer)


def weights_bytes(model: Any) -> int:
    """Return how much the saved weights take: of an adapted model, only what is trained."""
    adapted = _adapted(model)
    return sum(
        _numel(item) * item.element_size()
        for item in model.parameters()
        if item.requires_grad or not adapted
    )


def final_bytes(model: Any, tokenizer: Any, width: int | None = None) -> int:
    """Return how much the end of a run writes: an adapter, if there is one, and whole weights.

    Whole weights have `width` bytes a number, or as many as in `model`.
    """
    whole = sum(
        _numel(item) * (width or item.element_size())
        for name, item in model.named_parameters()
        if "lora_" not in name
    )
    adapter = weights_bytes(model) + small_bytes(tokenizer) if _adapted(model) else 0
    return whole + small_bytes(tokenizer) + adapter


def small_bytes(tokenizer: Any) -> int:
    """Return how much lies beside saved weights: tokenizer, configuration, state."""
    return _SMALL + _TOKEN * (len(tokenizer) if tokenizer is not None else 0)


def _adapted(model: Any) -> bool:
    return bool(getattr(model, "peft_config", None))


def _numel(parameter: Any) -> int:
    # Under ZeRO-3 a parameter is empty here and carries its size in ds_numel.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def write_failure(error: BaseException) -> str | None:
    """Return why a disk did not take what was written, or None if `error` says nothing of it.

    Looks at everything that `error` was raised from. OSErrors carry a number; torch, safetensors
    and SQLite have errors of their own, with the system's words in them or without any.
    """
    return next((failure for item in _chain(error) if (failure := _failure(item))), None)


def _failure(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        label = f" ({error.filename})" if error.filename else ""
        return os.strerror(error.errno) + label
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _SQLITE:
        return f"a database {_SQLITE[code & 0xFF]} ({error})"
    text = str(error)
    for number in _UNWRITABLE:
        # Rust's words, and torch's.
        if f"(os error {number})" in text or f"strerror: {os.strerror(number)}" in text:
            return os.strerror(number)
    return "a file was cut short" if any(part in text for part in _WRITER_TEXTS) else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    visited: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        item = left.pop()
        if item is None or id(item) in visited:
            continue
        visited.add(id(item))
        yield item
        left += [item.__context__, item.__cause__]  # the cause is looked at first
        if isinstance(item, BaseExceptionGroup):
            left += item.exceptions


def disk_error(
    error: BaseException, folder: Path, newest: Path | None = None, command: str | None = None
) -> DiskError | None:
    """Return `error` as its reader needs it, if a disk is its cause, else None.

    `folder` is the run's, `newest` its newest valid checkpoint, `command` what goes on with it.
    Without a command nothing has begun, and nothing is lost.
    """
    if isinstance(error, DiskError):
        what = str(error)
    elif (why := write_failure(error)) is not None:
        what = f"The disk did not take what was written: {why}. {_places(folder)}."
    else:
        return None
    if command is None:
        return DiskError(f"{what}\nMake room, then give the same command again.")
    safe = f"Training is safe up to {newest}" if newest else "No checkpoint has been completed"
    return DiskError(f"{what}\n{safe}. Make room, then go on with:\n  {command}")


@contextmanager
def explain_disk_errors(folder: Path) -> Iterator[None]:
    """Turn what a disk refuses inside the block into a DiskError; our own errors stay."""
    try:
        yield
    except HfRlhfError:
        raise
    except Exception as error:
        if (message := disk_error(error, folder)) is None:
            raise
        raise message from error


def _places(*folders: Path) -> str:
    """Return what is free on each disk that `folders` and temporary and cached files lie on."""
    from huggingface_hub.constants import HF_HOME

    visited: dict[int, str] = {}
    for folder in (*folders, Path(tempfile.gettempdir()), Path(HF_HOME)):
        visited.setdefault(os.stat(_existing(folder)).st_dev, f"{folder}: {Space.of(folder)}")
    return "; ".join(visited.values())


def delete(folder: Path, first: str) -> None:
    """Delete `folder`, the file `first` before all others; one that is gone meanwhile is gone."""
    (folder / first).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
