"""Which checkpoint of a run can be trusted, and where its saves may fall.

A checkpoint counts once its manifest stands: its files, their sizes and checksums, written last.
A full disk or a kill in the middle of a save leaves a folder without one, which
`transformers.trainer_utils.get_last_checkpoint` would pick and resume from.
"""

import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from hf_rlhf.errors import DiskError, RunFolderError
from hf_rlhf.storage.disk import (
    Space,
    checkpoint_bytes,
    delete,
    final_bytes,
    human,
    taken_bytes,
    wait_seconds,
    wait_until,
)
from hf_rlhf.storage.files import atomic_write_text, sync_folder
from hf_rlhf.storage.pure_json import parse_json

MANIFEST = "manifest.json"
_BLOCK = 2**26
_NAME = re.compile(r"checkpoint-(\d+)")


def seal(checkpoint: Path) -> None:
    """Make a complete checkpoint valid: flush its files to disk, then write its manifest."""
    for path in sorted(_files(checkpoint)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    found = contents(checkpoint)
    for folder in {path.parent for path in _files(checkpoint)}:
        sync_folder(folder)
    atomic_write_text(checkpoint / MANIFEST, json.dumps(found, indent=1))
    sync_folder(checkpoint.parent)


def contents(folder: Path) -> dict[str, Any]:
    """Return the files of a folder with their sizes and checksums, as a manifest has them."""
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "crc": checksum(path)}
        for path in sorted(_files(folder))
    }


def changed(folder: Path, content: Mapping[str, Any]) -> list[str]:
    """Return the files that no longer hold what `contents` found; reads them all."""
    return [name for name, saved in content.items() if not _is(_whole, folder / name, saved)]


def _whole(path: Path, saved: Any) -> bool:
    return bool(path.stat().st_size == saved["size"] and checksum(path) == saved["crc"])


def is_valid(checkpoint: Path) -> bool:
    """Return whether the manifest stands and every file that it names has its size."""
    return not _differing(checkpoint, lambda path, saved: path.stat().st_size == saved["size"])


def _differing(checkpoint: Path, same: Callable[[Path, Any], bool]) -> list[str]:
    """Return the files that are not as the manifest says, or the manifest's own name."""
    try:
        content = parse_json((checkpoint / MANIFEST).read_text())
        if not content:
            return [MANIFEST]
        return [name for name, saved in content.items() if not _is(same, checkpoint / name, saved)]
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return [MANIFEST]


def _is(same: Callable[[Path, Any], bool], path: Path, saved: Any) -> bool:
    try:
        return same(path, saved)
    except OSError:
        return False


def checksum(path: Path) -> int:
    """Return a CRC-32 over the CRC-32s of a file's blocks, which are read side by side.

    Against accidents of the storage, and no protection against anyone.
    """

    def block(start: int) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return zlib.crc32(file.read(_BLOCK)).to_bytes(4, "big")

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return zlib.crc32(b"".join(pool.map(block, range(0, path.stat().st_size, _BLOCK))))


def step_of(checkpoint: Path) -> int:
    """Return the optimizer step that a checkpoint folder is named after."""
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named checkpoint-STEP")
    return int(match[1])


def valid_checkpoints(folder: Path) -> list[Path]:
    """Return the valid checkpoints under `folder`, oldest step first."""
    return [path for path in _named(folder) if is_valid(path)]


def newest_valid(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, on all processes the same; all of them must call this.

    The main process reads it whole, and prints which newer ones are passed over, why, and how many
    steps that costs. Files that are no part of it are moved out of it, which is printed too.
    Raises RunFolderError where a process does not see what the main one sees.
    """
    found = _newest_intact(folder) if PartialState().is_main_process else None
    if found is not None:
        _move_strays(found)
    chosen: Path | None = broadcast_object_list([found])[0]
    if not all(gather_object([chosen is None or is_valid(chosen)])):
        raise RunFolderError(
            f"{chosen} is not to be seen by every process. `output_dir` must lie on storage that "
            "all machines share."
        )
    return chosen


def _newest_intact(folder: Path) -> Path | None:
    """Return the newest intact checkpoint; print the problems of newer ones."""
    newer: list[Path] = []
    chosen = None
    for checkpoint in reversed(_named(folder)):
        if (flaw := _flaw(checkpoint)) is None:
            chosen = checkpoint
            break
        newer.append(checkpoint)
        print(f"Skipped {checkpoint}: {flaw}.")
    if newer:
        start, last = step_of(chosen) if chosen else 0, step_of(newer[0])
        begin = f"resuming from step {start} instead" if chosen else "starting from step 0"
        print(f"{begin}: the steps up to {last} ({last - start}) are repeated", flush=True)
    return chosen


def _flaw(checkpoint: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from, None if it is intact."""
    if not (checkpoint / MANIFEST).exists():
        return f"it has no {MANIFEST}: its save was not finished"
    if files := _differing(checkpoint, _whole):
        if files == [MANIFEST]:
            return f"its {MANIFEST} cannot be read"
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        return f"{', '.join(files[:3])}{more} changed or missing since it was saved"
    return None


def _move_strays(checkpoint: Path) -> None:
    """Move files that the manifest does not list out of the checkpoint: a loader may use them."""
    sealed = parse_json((checkpoint / MANIFEST).read_text())
    beside = checkpoint.with_name(f"{checkpoint.name}.stray")
    strays = [p for p in _files(checkpoint) if p.relative_to(checkpoint).as_posix() not in sealed]
    for path in strays:
        target = beside / path.relative_to(checkpoint)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
        while not any((path := path.parent).iterdir()):
            path.rmdir()
    if strays:
        names = ", ".join(path.relative_to(checkpoint).as_posix() for path in strays[:3])
        more = f" and {len(strays) - 3} more" if len(strays) > 3 else ""
        print(f"{names}{more}: not part of {checkpoint}, moved to {beside}", flush=True)


def cycle_in_steps(training: Any) -> int:
    """Return after how many optimizer steps a save falls between two GRPO generation cycles.

    Resuming elsewhere is inexact, since the completions under way are not saved: a cycle is
    lcm(steps_per_generation * num_iterations, accumulation) micro-steps. 1 for other trainers.
    """
    accumulation = training.gradient_accumulation_steps
    cycle = getattr(training, "steps_per_generation", None) or accumulation
    cycle *= getattr(training, "num_iterations", 1)
    return math.lcm(cycle, accumulation) // int(accumulation)


def prune(folder: Path, keep: int) -> None:
    """Delete all valid checkpoints but the newest `keep`, and what no resume can use.

    That is what a save that failed has left, unless its step is still to come: it may be all
    that is left of that step, and is written anew when training gets there.
    """
    valid = valid_checkpoints(folder)
    for checkpoint in valid[:-keep] if keep else ():
        delete(checkpoint, first=MANIFEST)
    for checkpoint in _named(folder):
        if valid and step_of(checkpoint) < step_of(valid[-1]) and not is_valid(checkpoint):
            delete(checkpoint, first=MANIFEST)


def discard_unsealed(folder: Path) -> None:
    """Delete the checkpoints without a manifest: what a save that failed has just left."""
    for checkpoint in _named(folder):
        if not (checkpoint / MANIFEST).exists():
            delete(checkpoint, first=MANIFEST)


class SealCheckpoints(TrainerCallback):  # type: ignore[misc]
    """Makes room for each checkpoint, seals it once complete, deletes all but the newest `keep`.

    transformers' own rotation deletes before the new checkpoint is known to be whole, so it is
    turned off for our runs. Place it after callbacks that ask for a save at the end of a step.
    """

    def __init__(self, keep: int | None, *, wait: float | None = None) -> None:
        self.keep = keep
        self.wait = wait_seconds() if wait is None else wait
        """For how many seconds a save waits for space, before the run ends with DiskError."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Make room, if a save follows this step."""
        if control.should_save:
            self._make_room(args, state, control, given)

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Make room for a save that depends on what was just measured."""
        if args.save_strategy == "best":
            self._make_room(args, state, control, given)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal what was saved at this step."""
        # Each process writes its own files, and a manifest made before the last would not verify.
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        seal(folder / f"checkpoint-{state.global_step}")
        prune(folder, self.keep or 0)

    def _make_room(self, args: Any, state: Any, control: Any, given: Mapping[str, Any]) -> None:
        """Let all processes save, or none: the main one looks, and the others wait for it.

        Raises DiskError when it does not fit and nobody makes room in time. The checkpoint of the
        last step is left out instead, if the weights that come after it do fit.
        """
        said: str | None = None
        model, tokenizer = given["model"], given.get("processing_class")
        if state.is_world_process_zero:
            said = self._shortage(args, state, checkpoint_bytes(model, tokenizer, args))
        said = broadcast_object_list([said])[0]
        if said is None:
            return
        last = state.global_step >= state.max_steps
        room = Space.of(Path(args.output_dir)).holds(final_bytes(model, tokenizer))
        if broadcast_object_list([last and room])[0]:
            control.should_save = False
            if state.is_world_process_zero:
                print(f"{said} Training is done, so only its weights are saved.", flush=True)
            return
        raise DiskError(said)

    def _shortage(self, args: Any, state: Any, size: int) -> str | None:
        """Return None once a checkpoint of about `size` bytes fits, else what is missing."""
        folder = Path(args.output_dir)
        leftover = folder / f"checkpoint-{state.global_step}"
        if leftover.exists() and not is_valid(leftover):
            delete(leftover, first=MANIFEST)  # a file of another save must not be sealed with it
        if valid := valid_checkpoints(folder):
            size = taken_bytes(valid[-1])
        size = int(size * 1.02) + 2**18

        def fits() -> bool:
            if Space.of(folder).holds(size):
                return True
            discard_unsealed(folder)
            if self.keep:
                prune(folder, 1)
            return Space.of(folder).holds(size)

        if fits():
            return None
        said = (
            f"The checkpoint of step {state.global_step} does not fit in {folder}: it takes about "
            f"{human(size)}, {Space.of(folder)}."
        )
        # The others wait in a collective call, which gives up after `ddp_timeout`.
        wait = min(self.wait, args.ddp_timeout / 2)
        if wait:
            print(f"{said} Waiting up to {wait:.0f} s for space.", flush=True)
        if not wait_until(fits, wait):
            return said
        print("There is room now; training goes on.", flush=True)
        return None


class AlreadyTrained(Exception):
    """Training was resumed from the checkpoint of its last step."""


class StopIfTrained(TrainerCallback):  # type: ignore[misc]
    """Raises AlreadyTrained, with the weights loaded, when no step is left to do.

    transformers looks whether training is over only after a step: resumed from its last
    checkpoint within an epoch, it trains one step more than was asked.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look before the first step."""
        if 0 < state.max_steps <= state.global_step:
            raise AlreadyTrained


def _named(folder: Path) -> list[Path]:
    """Return the folders under `folder` with a checkpoint's name, oldest step first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in found if p.is_dir() and _NAME.fullmatch(p.name)), key=step_of)


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != MANIFEST:
            yield path
