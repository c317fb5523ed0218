"""What a phase begins with: the model that the one before has saved, or its newest checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from hf_rlhf.config import RunFile
from hf_rlhf.errors import ModelError, RunFolderError
from hf_rlhf.models.loading import CONFIG
from hf_rlhf.runs.phases import Phase
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.checkpoints import changed, contents
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.pure_json import parse_json
from hf_rlhf.storage.record import RECORD_NAME, load_record
from hf_rlhf.training.checkpoints import newest_valid
from hf_rlhf.training.run_changes import differences

SAVED = "saved.json"
"""In a phase's folder: the files of what it has saved, with their sizes and checksums."""
Say = Callable[[str], None]


def note_saved(folder: Path, adapted: bool) -> None:
    """Note what a finished phase has saved, once."""
    if not (folder / SAVED).exists():
        atomic_write_json(folder / SAVED, contents(_saved(folder, adapted)))


def is_finished(link: Phase, run: Run) -> bool:
    """Return whether a phase has ended as `run` would: what it began with may be gone by now.

    One that was another run is left to be refused. All processes get the same answer.
    """
    result = _has_finished(link, run) if PartialState().is_main_process else False
    return bool(broadcast_object_list([result])[0])


def _has_finished(link: Phase, run: Run) -> bool:
    if not (link.folder / RECORD_NAME).exists():
        return False
    record = load_record(link.folder)
    started = {"model_name_or_path", "model_revision", "adapter", "adapter_revision"}
    same = not any(
        line.partition(":")[0] not in started | {"adapter's weights"}
        for line in differences(record, run)
    )
    return same and record.status == "finished"


def phase_start(link: Phase, before: Phase | None, adapted: bool, say: Say) -> Path | None:
    """Return the folder that a phase begins with, None for the base; all processes call this.

    It is what the phase `before` has saved. If that is gone or damaged, it is that phase's newest
    valid checkpoint, which is said.

    Raises:
        ModelError: there is neither.
        RunFolderError: the phase has begun with something else.
    """
    if before is None:
        return None
    start = _newest(before, adapted, say)
    began = _began_with(link, adapted)
    if began is not None and began != str(start):
        raise RunFolderError(
            f"{link.folder} began with {began}, which is not as it was. Put that back, or delete "
            f"{link.folder}: then the phase begins anew with {start}."
        )
    return start


def _newest(before: Phase, adapted: bool, say: Say) -> Path:
    saved = _saved(before.folder, adapted)
    # Read whole, so by one process only.
    wrong = _damaged(before.folder, saved) if PartialState().is_main_process else []
    wrong = broadcast_object_list([wrong])[0]
    if not wrong:
        return saved
    checkpoint = newest_valid(before.folder / "checkpoints")
    if checkpoint is None or not (checkpoint / (CONFIG if adapted else "config.json")).exists():
        raise ModelError(
            f"{saved} is not as phase {before.name} left it ({', '.join(wrong[:3])}), and of its "
            f"checkpoints none can be begun with. Delete {before.folder} to train it again."
        )
    say(
        f"{saved} is not as phase {before.name} left it ({', '.join(wrong[:3])}): beginning with "
        f"{checkpoint}, its newest valid checkpoint"
    )
    return checkpoint


def _damaged(folder: Path, saved: Path) -> list[str]:
    """Return what is wrong with a saved model, empty if it is as it was."""
    if not saved.is_dir():
        return [f"no {saved.name}"]
    try:
        return changed(saved, parse_json((folder / SAVED).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError):
        return [f"{SAVED} cannot be read"]


def _began_with(link: Phase, adapted: bool) -> str | None:
    if not (link.folder / RECORD_NAME).exists():
        return None
    began = load_record(link.folder).config.get("adapter" if adapted else "model_name_or_path")
    return None if began is None else str(began)


def starting_from(file: RunFile, start: Path, adapted: bool) -> RunFile:
    """Return a phase's run file with what it begins with: an adapter on the base, or weights."""
    if adapted:
        gone, provided = "adapter_revision", {"adapter": str(start)}
    else:
        gone, provided = "model_revision", {"model_name_or_path": str(start)}
    values = {key: value for key, value in file.values.items() if key != gone}
    return replace(file, values={**values, **provided})


def _saved(folder: Path, adapted: bool) -> Path:
    return folder / ("adapter" if adapted else "merged")
