"""A run's checkpoints that wait to be pushed, and those that were: the folder `.publishing`.

Training deletes old checkpoints while their pushes are still under way, or wait for a Hub that is
down; so their files are staged when a checkpoint is saved.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.hub.upload_set import publishable_files
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.record import RunRecord

OUTBOX = ".publishing"
_COPIED_BYTES = 2**30


def stage_checkpoint(checkpoint: Path, run: Path, step: int) -> None:
    """Keep the files that are to be pushed of a checkpoint, which may then be deleted.

    By hard links, which cost no space while the checkpoint stands. Where the file system has none,
    small files are copied, and a checkpoint with large ones is left where it is.
    """
    target = staged(run, step)
    draft = target.with_suffix(".tmp")
    if target.exists():
        return
    for abandoned in (run / OUTBOX).glob("step-*.tmp"):  # by a process that was killed
        shutil.rmtree(abandoned, ignore_errors=True)
    for path in publishable_files(checkpoint):
        link = draft / path.relative_to(checkpoint)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, link)
        except OSError:
            if path.stat().st_size > _COPIED_BYTES:
                shutil.rmtree(draft)
                return
            shutil.copyfile(path, link)
    draft.rename(target)


def staged(run: Path, step: int) -> Path:
    """Return the folder in which a checkpoint is staged."""
    return run / OUTBOX / f"step-{step}"


def complete_steps(run: Path) -> list[int]:
    """Return the steps of which a checkpoint can be pushed, in order."""
    from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints

    waiting = [int(path.name[5:]) for path in (run / OUTBOX).glob("step-*") if not path.suffix]
    return sorted({*waiting, *(step_of(path) for path in valid_checkpoints(run / "checkpoints"))})


def note_step(run: Path, step: int, where: Mapping[str, Any]) -> None:
    """Remember that a checkpoint is published, and delete its staged files.

    In a file of its own: a training under way and a command may publish at the same time.
    """
    atomic_write_json(staged(run, step).with_suffix(".json"), dict(where))
    shutil.rmtree(staged(run, step), ignore_errors=True)


def published_steps(run: Path, record: RunRecord) -> dict[str, Any]:
    """Return step -> its URL and commits: those of the record, and those noted since."""
    steps = dict(record.published().get("steps") or {})
    for path in (run / OUTBOX).glob("step-*.json"):
        steps[path.stem.removeprefix("step-")] = json.loads(path.read_text(encoding="utf-8"))
    return {step: steps[step] for step in sorted(steps, key=int)}
