"""TRL's handling of the reference of DPO and KTO."""

import shutil
from pathlib import Path
from typing import Any

from datasets import load_from_disk
from transformers import TrainerCallback

from hf_rlhf.contracts import HeldModel
from hf_rlhf.distributed import processes, run_on_main_process
from hf_rlhf.models import policy_arguments
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import eval_rows, training_rows

NAME = "ref"
"""TRL's name for the frozen copy of a continued adapter, and peft's folder for it."""
COMPUTED = Path("evaluation", "reference_rows")
"""The folder in a run folder for rows with precomputed values of the reference."""


def held_reference(run: Run) -> dict[str, HeldModel]:
    """Return the reference that TRL holds as a separate model or adapter, if any."""
    training = run.training
    if not training.beta or getattr(training, "precompute_ref_log_probs", False):
        return {}
    if run.model.use_peft and run.adapter is None:
        return {}  # the base with its adapter off
    in_host = getattr(training, "reference", None) == "cpu_offload"
    return {"reference": HeldModel(adapter=run.model.use_peft, in_host=in_host)}


class SavesNoReference:
    """A base class, before TRL's, of a trainer with a reference model."""

    args: Any

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter or weights, without the frozen adapter that is the reference.

        Otherwise a checkpoint would hold two adapters; a resumed run recreates the reference.
        """
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        copy = Path(output_dir or self.args.output_dir) / NAME
        if self.args.should_save and (copy / "adapter_config.json").exists():
            shutil.rmtree(copy)


def trainer_arguments(run: Run, *columns: str) -> dict[str, Any]:
    """Return the arguments of a TRL trainer on rows with these columns; this loads the weights."""
    return {
        **policy_arguments(run),
        "args": run.training,
        "train_dataset": rows_in_files(run, training_rows(run, *columns), "train"),
        "eval_dataset": rows_in_files(run, eval_rows(run, *columns), "eval"),
        "processing_class": run.tokenizer,
        "callbacks": [*run.callbacks, DropComputed(run)],
    }


def rows_in_files(run: Run, rows: Any, split: str) -> Any:
    """Return rows stored in the run folder, if several processes compute their reference.

    TRL's main process then writes the values beside the rows, where the other processes read them.
    Rows in memory would use its own temporary folder, and the other processes would fail.
    """
    precomputed = getattr(run.training, "precompute_ref_log_probs", False)
    if rows is None or not precomputed or processes() == 1:
        return rows
    folder = run.folder / COMPUTED / split

    def write() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        rows.save_to_disk(folder)

    run_on_main_process(write)
    return load_from_disk(folder)


class DropComputed(TrainerCallback):  # type: ignore[misc]
    """Removes what `rows_in_files` wrote when training ends; open files remain readable."""

    def __init__(self, run: Run) -> None:
        self.folder = run.folder / COMPUTED

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Remove the folder, on the main process."""
        if state.is_world_process_zero:
            shutil.rmtree(self.folder, ignore_errors=True)
