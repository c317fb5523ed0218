"""Whether what lies in a run folder is the same run."""

from hf_rlhf.errors import RunFolderError
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record
from hf_rlhf.training.run_changes import differences

WRITTEN = (
    *("README.md", "config.yaml", "samples.jsonl", "reward_curve.png", "training_curves.png"),
    *("evaluation", "checkpoints", "adapter", "merged"),
)
"""What a run writes beside its record."""


def previous_record(run: Run) -> RunRecord | None:
    """Return the record of the same run begun earlier in this folder, or None for a new folder.

    Raises RunFolderError when the folder holds another run, showing the difference, or other
    files in the places of ours: a checkpoint or an evaluation whose run is not known would be
    taken for this run's, and a README.md would be lost.
    """
    if not (run.folder / RECORD_NAME).exists():
        if names := [name for name in WRITTEN if (run.folder / name).exists()]:
            raise RunFolderError(
                f"{run.folder} has no {RECORD_NAME}, but holds {', '.join(names)}, where a run "
                "writes its own. Choose another `output_dir`, or move them away."
            )
        return None
    record = load_record(run.folder)
    if changed := differences(record, run):
        text = "".join(f"\n  - {line}" for line in changed)
        raise RunFolderError(
            f"{run.folder} holds another run. What differs (there -> here):{text}\n"
            "Give this run another `output_dir`, or delete that folder."
        )
    return record
