"""Manage the working folder of the verbs with its ledger of completed steps.

DIR/
  traces.json            the ledger (`hf_rlhf.steps`): inputs and result of each step
  rejects.jsonl          the rows that could not be read: where, reason, detail, the row
  summaries/             summaries, and the samples that failed
  datasets/              a folder for each dataset, and their card
  runs/ eval/ analysis/  output of training, evaluation and analysis
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps import Ledger

MANIFEST = "traces.json"
REJECTS = "rejects.jsonl"
REFUSED = "rejects.refused.jsonl"
"""The rejects of a reading that had too many, and so replaced nothing."""
BUILD_STEPS = ("build", "format", "multiturn", "steps")
"""The steps of `hf-rlhf traces build`."""
State = Literal["to do", "done", "stale"]


class Store(Ledger):
    """The ledger of a folder of traces."""

    def __init__(self, folder: Path, folder_option: str = "DIR") -> None:
        """Open the ledger in `folder`. Raises RunFolderError if it is damaged."""
        super().__init__(folder, MANIFEST, folder_option=folder_option, command=self._command)

    @classmethod
    def make(cls, folder: Path) -> "Store":
        """Return the store in a folder, which may be new.

        Raises RunFolderError if the folder contains other files.
        """
        if not (folder / MANIFEST).exists() and _holds_other_files(folder):
            what = f"holds other files and no {MANIFEST}" if folder.is_dir() else "is a file"
            raise RunFolderError(f"{folder} {what}. Choose another --out.")
        store = cls(folder, "--out")
        if not store.path.exists():
            with store.locked():
                store._write(store.entries())
        return store

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Return the store in a folder. Raises RunFolderError if there is none."""
        if not (folder / MANIFEST).exists():
            raise RunFolderError(
                f"{folder} has no {MANIFEST}: nothing was built in it. "
                f"First: hf-rlhf traces build FILE --out {folder}"
            )
        return cls(folder)

    def report(self, step: str) -> Mapping[str, Any]:
        """Return the result and notes of a step.

        Raises RunFolderError if it is not done, or its inputs have changed.
        """
        entry = self.entry(step)
        return {**entry["result"], **entry["notes"]}

    def settings(self, step: str) -> Mapping[str, Any]:
        """Return the settings of a completed step, else {}."""
        entry = self.entries().get(step)
        return dict(entry["inputs"]) if entry else {}

    def state(self, step: str, settings: Mapping[str, Any] | None = None) -> State:
        """Return the state of a step; with other `settings` than before, it is stale."""
        reasons = self.reasons(step, settings)
        if reasons is None:
            return "to do"
        return "stale" if reasons else "done"

    def check(self, step: str, settings: Mapping[str, Any], *, overwrite: bool = False) -> State:
        """Return the state of a step.

        Raises RunFolderError, with the differences, if the settings differ without `overwrite`.
        """
        if not overwrite:
            self.refuse_changed(step, settings)
        return self.state(step, settings)

    def _command(self, step: str) -> str:
        if step in BUILD_STEPS:
            return f"hf-rlhf traces build FILE --out {self.folder}"
        return f"hf-rlhf traces {step} {self.folder}"


def _holds_other_files(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()
    ours = (".", "build", REFUSED)  # of a process killed before it wrote the ledger
    return any(not path.name.startswith(ours) for path in folder.iterdir())
