"""Callbacks around checkpoints, and the choice of the checkpoint to resume from.

Valid checkpoints are defined in `hf_rlhf.storage.checkpoints`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from hf_rlhf.errors import DiskError, RunFolderError
from hf_rlhf.monitoring.monitor import Monitor
from hf_rlhf.storage.checkpoints import (
    MANIFEST,
    discard_unsealed,
    flaw,
    is_valid,
    newest_intact,
    prune,
    seal,
    step_of,
    valid_checkpoints,
)
from hf_rlhf.storage.disk import (
    checkpoint_bytes,
    delete,
    final_bytes,
    free_bytes,
    human,
    taken_bytes,
)
from hf_rlhf.training.progress import say
from hf_rlhf.training.validation import Validation


def newest_valid(folder: Path) -> Path | None:
    """Return the checkpoint to resume from, the same on all processes; all must call this.

    The main process reads it completely, and prints which newer checkpoints are skipped, why, and
    the steps lost. Raises RunFolderError if another process cannot read it.
    """
    newest = newest_intact(folder) if PartialState().is_main_process else None
    checkpoint: Path | None = broadcast_object_list([newest])[0]
    if not all(gather_object([checkpoint is None or is_valid(checkpoint)])):
        raise RunFolderError(
            f"{checkpoint} cannot be read by every process. `output_dir` must be on storage that "
            "all machines share."
        )
    return checkpoint


class CheckpointManifestCallback(TrainerCallback):  # type: ignore[misc]
    """Makes room for each checkpoint, seals it when complete, deletes all but the newest `keep`.

    transformers' own rotation deletes before the new checkpoint is complete, so it is disabled.
    This callback must follow callbacks that request a save at the end of a step.
    """

    def __init__(
        self,
        keep: int | None,
        *,
        keep_best: bool = False,
        monitor: Monitor | None = None,
        in_use: Callable[[], set[int]] = set,
    ) -> None:
        self.keep = keep
        self.monitor = monitor
        """The newest checkpoint from before the drift that it may find is kept."""
        self.keep_best = keep_best
        """Whether the weights of the best step so far may be saved at the end."""
        self.in_use = in_use
        """Returns the steps whose checkpoints stay as long as the disk has space for them."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make room, if a save follows this step."""
        if control.should_save:
            self._make_room(args, state, control, kwargs)

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make room, if the save depends on this evaluation."""
        if args.save_strategy == "best":
            self._make_room(args, state, control, kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Seal this step's checkpoint."""
        # Each process writes its own files; an earlier manifest would not verify.
        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        seal(folder / f"checkpoint-{state.global_step}")
        prune(folder, self.keep or 0, self._spared(folder, state) | self.in_use())

    def _spared(self, folder: Path, state: Any) -> set[int | None]:
        """Return the steps whose checkpoints must stay."""
        spared: set[int | None] = {state.best_global_step} if self.keep_best else set()
        if self.monitor is not None and (clean := self.monitor.clean_step) is not None:
            steps = [step_of(path) for path in valid_checkpoints(folder)]
            spared.add(max((step for step in steps if step <= clean), default=None))
            # It replaces that checkpoint once it is known to be clean.
            spared.add(min((step for step in steps if step > clean), default=None))
        return spared

    def _make_room(self, args: Any, state: Any, control: Any, kwargs: Mapping[str, Any]) -> None:
        """Let all processes save or none: the main process checks, and the others wait.

        Raises DiskError if it does not fit. The last step's
        checkpoint is instead skipped if the final weights fit.
        """
        shortage: str | None = None
        model, tokenizer = kwargs["model"], kwargs.get("processing_class")
        if state.is_world_process_zero:
            shortage = self._shortage(args, state, checkpoint_bytes(model, tokenizer, args))
        shortage = broadcast_object_list([shortage])[0]
        if shortage is None:
            return
        # Its weights may be the best, which are loaded from a checkpoint.
        last = state.global_step >= state.max_steps and not self.keep_best
        room = free_bytes(Path(args.output_dir)) >= final_bytes(model, tokenizer)
        if broadcast_object_list([last and room])[0]:
            control.should_save = False
            if state.is_world_process_zero:
                say(f"{shortage} Training is done, so only its weights are saved.")
            return
        raise DiskError(shortage)

    def _shortage(self, args: Any, state: Any, size: int) -> str | None:
        """Return None if a checkpoint of about `size` bytes fits, else the shortage."""
        folder = Path(args.output_dir)
        leftover = folder / f"checkpoint-{state.global_step}"
        if flaw(leftover):
            delete(leftover, first=MANIFEST)  # do not seal files of another save with it
        if valid := valid_checkpoints(folder):
            size = taken_bytes(valid[-1])
        size = int(size * 1.02) + 2**18
        if free_bytes(folder) < size:
            discard_unsealed(folder)
            if self.keep:
                prune(folder, 1, self._spared(folder, state))
        if free_bytes(folder) >= size:
            return None
        return (
            f"The checkpoint of step {state.global_step} does not fit in {folder}: it takes about "
            f"{human(size)}, {human(free_bytes(folder))} free."
        )


class AlreadyTrained(Exception):
    """Training was resumed from the checkpoint of the last step."""


class StopIfTrained(TrainerCallback):  # type: ignore[misc]
    """Raises AlreadyTrained, with the weights loaded, if no step is left.

    transformers checks for the end of training only after a step: resumed from its last checkpoint
    within an epoch, it trains a step too many. It also ignores in the checkpoint that training
    stopped early, and continues.
    """

    def __init__(self, validation: Validation | None = None) -> None:
        self.validation = validation

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check before the first step."""
        stopped = self.validation is not None and self.validation.stopped_early
        if stopped or 0 < state.max_steps <= state.global_step:
            if self.validation is not None:
                self.validation.load_best(state)
            raise AlreadyTrained
