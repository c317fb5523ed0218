"""Who owns a run folder, and whether what lies in it is the same run."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_rlhf.errors import RunFolderError
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.files import atomic_write_text, clear_unfinished
from hf_rlhf.storage.record import LOCK_NAME, RECORD_NAME, RunRecord, load_record, now
from hf_rlhf.training.run_changes import differences

OWNER_NAME = ".owner.json"
WRITTEN = (
    *("README.md", "config.yaml", "samples.jsonl", "reward_curve.png", "training_curves.png"),
    *("evaluation", "checkpoints", "adapter", "merged"),
)
"""What a run writes beside its record."""


@contextmanager
def claimed(
    folder: Path, chosen_by: str = "`output_dir`", *, told: Path | None = None
) -> Iterator[None]:
    """Hold `folder` for this process; a crash gives it back, since the lock is the system's.

    For messages: `chosen_by` is what the user chooses the folder by; `told`, where `folder` is one
    of ours that no user knows, is the one that it is for.

    Raises RunFolderError when another live process holds it, naming that process.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME, timeout=0)
        lock.acquire()
    except Timeout:
        raise RunFolderError(
            f"{told or folder} is in use by {_owner(folder)}. Wait for it, stop it, or choose "
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


def previous_record(run: Run) -> RunRecord | None:
    """Return the record of the same run begun earlier in this folder, or None for a new folder.

    Raises RunFolderError when the folder holds another run, showing the difference, or other
    files in the places of ours: a checkpoint or an evaluation whose run is not known would be
    taken for this run's, and a README.md would be lost.
    """
    if not (run.folder / RECORD_NAME).exists():
        if found := [name for name in WRITTEN if (run.folder / name).exists()]:
            raise RunFolderError(
                f"{run.folder} has no {RECORD_NAME}, but holds {', '.join(found)}, where a run "
                "writes its own. Choose another `output_dir`, or move them away."
            )
        return None
    record = load_record(run.folder)
    if changed := differences(record, run):
        shown = "".join(f"\n  - {line}" for line in changed)
        raise RunFolderError(
            f"{run.folder} holds another run. What differs (there -> here):{shown}\n"
            "Give this run another `output_dir`, or delete that folder."
        )
    return record
