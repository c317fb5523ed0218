"""What a run has to push of its checkpoints, and what it has pushed: the folder `.publishing`.

Training deletes old checkpoints while their pushes are still under way, or wait for a Hub that is
down; so the files are set aside when a checkpoint is saved.
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


def set_aside(checkpoint: Path, run: Path, step: int) -> None:
    """Keep what is to be pushed of a checkpoint, which may then be deleted: by hard links.

    Costs no space while the checkpoint stands. Where the file system has no hard links, small
    files are copied, and a checkpoint with large ones is left where it is.
    """
    target, draft = outbox(run, step), outbox(run, step).with_suffix(".tmp")
    if target.exists():
        return
    for left in (run / OUTBOX).glob("step-*.tmp"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    files = [path for path in publishable_files(checkpoint) if path.is_file()]
    for path in files:
        aside = draft / path.relative_to(checkpoint)
        aside.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, aside)
        except OSError:
            if path.stat().st_size > _COPIED_BYTES:
                shutil.rmtree(draft)
                return
            shutil.copyfile(path, aside)
    draft.rename(target)


def outbox(run: Path, step: int) -> Path:
    """Return where a checkpoint is set aside."""
    return run / OUTBOX / f"step-{step}"


def complete_steps(run: Path) -> list[int]:
    """Return the steps of which a checkpoint can be pushed, in order."""
    from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints

    aside = [int(path.name[5:]) for path in (run / OUTBOX).glob("step-*") if not path.suffix]
    return sorted({*aside, *(step_of(path) for path in valid_checkpoints(run / "checkpoints"))})


def note_step(run: Path, step: int, where: Mapping[str, Any]) -> None:
    """Remember that a checkpoint is published, and what was set aside of it no more.

    In a file of its own: a training under way and a command may publish at the same time.
    """
    atomic_write_json(outbox(run, step).with_suffix(".json"), dict(where))
    shutil.rmtree(outbox(run, step), ignore_errors=True)


def published_steps(run: Path, record: RunRecord) -> dict[str, Any]:
    """Return step -> where it was published, as the record knows and as was noted since."""
    known = dict(record.published().get("steps") or {})
    for path in (run / OUTBOX).glob("step-*.json"):
        known[path.stem.removeprefix("step-")] = json.loads(path.read_text(encoding="utf-8"))
    return {step: known[step] for step in sorted(known, key=int)}
