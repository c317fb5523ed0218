"""A folder lock with the name of its process."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage.files import atomic_write_text, clear_unfinished
from hf_rlhf.storage.record import LOCK_NAME, now

OWNER_NAME = ".owner.json"


@contextmanager
def locked_folder(
    folder: Path, chosen_by: str = "`output_dir`", *, path: Path | None = None
) -> Iterator[None]:
    """Lock `folder` for this process; the system releases it after a crash.

    For messages: `chosen_by` is the option or setting of the folder; `path` is the displayed path
    if `folder` is internal.

    Raises RunFolderError with the name of the process that holds it, if any.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME, timeout=0)
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"{path or folder} is in use by {_owner(folder)}. Wait for it, stop it, or choose "
            f"another {chosen_by}."
        ) from None
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}. Choose another {chosen_by}."
        ) from error
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": now()}
        atomic_write_text(folder / OWNER_NAME, json.dumps(owner))
        clear_unfinished(folder)
        yield
    finally:
        (folder / OWNER_NAME).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    try:
        owner = json.loads((folder / OWNER_NAME).read_text())
        return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError):
        return "another process"
