"""Save the weights of a trained run, and the last steps of a stopped run."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import Trainer

from hf_rlhf.data.trained_rows import RESPONSES, TrainedRows
from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import HfRlhfError, ModelError
from hf_rlhf.models.adapter import CLASSIFIERS, CONFIG, check_adapter, read_adapter
from hf_rlhf.models.ends import list_end
from hf_rlhf.models.fingerprint import write_identity
from hf_rlhf.models.lengths import model_config
from hf_rlhf.models.merge import merge_adapter
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.checkpoints import is_valid
from hf_rlhf.storage.files import atomic_dir
from hf_rlhf.training.generation_cycle import Cycle

Say = Callable[[str], None]
REFERENCE = "ref"
"""TRL's adapter with a frozen copy of the continued adapter."""


def save_weights(run: Run, trainer: Any, identity: Any, say: Say) -> None:
    """Write `adapter/` and `merged/` atomically; all processes must call this.

    The base's `identity` is written beside the adapter. Raises ModelError for an incomplete
    adapter.
    """
    written = run.folder / ".trained"
    run_on_main_process(partial(shutil.rmtree, written, ignore_errors=True))
    trainer.save_model(str(written))
    PartialState().wait_for_everyone()
    run_on_main_process(partial(_move_weights, run, written, identity, say))
    run_on_main_process(partial(shutil.rmtree, written, ignore_errors=True))


def _move_weights(run: Run, written: Path, identity: Any, say: Say) -> None:
    folder, adapted = run.folder, run.model.use_peft
    # A pickle, into which transformers writes a `hub_token` in plain text.
    (written / "training_args.bin").unlink(missing_ok=True)
    if adapted:
        written = _trained_adapter(written)
        write_identity(written, identity)
    # Not every trainer saves it, and the weights are useless without it.
    run.tokenizer.save_pretrained(written)
    list_end(written)
    if run.task.endswith("-classification"):
        _trained_rows(run).write(written)
    # An existing folder is from a session that ended before it wrote its record.
    with atomic_dir(folder / ("adapter" if adapted else "merged"), overwrite=True) as new:
        new.rmdir()
        written.rename(new)
    if adapted:
        say("merging the adapter into the base")
        merge_adapter(
            run.model_path,
            folder / "adapter",
            folder / "merged",
            revision=run.model.model_revision,
            overwrite=True,
        )


def _trained_rows(run: Run) -> TrainedRows:
    """Return the training rows of the run's reward model, including continued runs."""
    starts = [each for each in (run.model_path, run.adapter) if each is not None]
    earlier = [rows for each in starts if (rows := TrainedRows.read(Path(each)))]
    adapter = read_adapter(run.adapter).config if run.adapter is not None else {}
    kinds = model_config(run).architectures or []
    was_reward = adapter.get("task_type") in CLASSIFIERS
    was_reward |= any("Classification" in kind for kind in kinds)
    columns = [name for name in ("prompt", *RESPONSES) if name in run.dataset["train"].features]
    rows = TrainedRows.of(run.dataset["train"].select_columns(columns))
    own = replace(rows, complete=bool(earlier) or not was_reward)
    return reduce(or_, earlier, own)


def _trained_adapter(written: Path) -> Path:
    """Return the folder of the trained adapter, ignoring a frozen reference.

    peft saves an adapter not named `default` in a subfolder of its name.
    """
    shutil.rmtree(written / REFERENCE, ignore_errors=True)
    inner = sorted(path.parent for path in written.glob(f"*/{CONFIG}"))
    if not (written / CONFIG).exists():
        if len(inner) != 1:
            names = ", ".join(path.name for path in inner) or "none"
            raise ModelError(
                f"The trainer saved no adapter: {written} has no {CONFIG}; adapters in its "
                f"folders: {names}. Its save_model should write the trained one into {written}."
            )
        written = inner[0]
    check_adapter(written)
    return written


def save_boundary(run: Run, trainer: Any, cycle: Cycle, error: BaseException, say: Say) -> None:
    """Save the steps since the last checkpoint if training stopped between two cycles.

    This is where a failed judge stops training: the weights are from the last step, and its random
    states sample the same completions again.
    """
    everywhere = isinstance(error, HfRlhfError) or PartialState().num_processes == 1
    if not (everywhere and isinstance(trainer, Trainer)):
        return
    state, boundary = trainer.state, cycle.boundary
    if boundary is None or not cycle.stands_at_boundary(state):
        return
    if is_valid(Path(run.training.output_dir) / f"checkpoint-{boundary.step}"):
        return
    say(f"saving step {boundary.step} before stopping")
    boundary.put_back(state)
    try:
        # No public method saves a complete checkpoint.
        trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        trainer.callback_handler.on_save(trainer.args, state, trainer.control)
    except (OSError, RuntimeError, HfRlhfError) as second:
        print(f"step {boundary.step} could not be saved: {second}", file=sys.stderr)
