"""The folder that the verbs work in: which steps are done there, from what, and what came of them.

DIR/
  traces.json            the ledger (`hf_rlhf.steps`): inputs and result of each step
  traces.jsonl           the traces that `read` wrote, in the typed form
  rejects.jsonl          the rows that could not be read: where, reason, detail, the row
  summaries/             summaries written so far, and those that failed
  datasets/              what is trained on and pushed: a folder for each dataset, and their card
  runs/ eval/ analysis/  what training, evaluation and analysis write
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps import Ledger

MANIFEST = "traces.json"
TRACES = "traces.jsonl"
REJECTS = "rejects.jsonl"
REFUSED = "rejects.refused.jsonl"
"""The rejects of a reading that had too many, and so did not replace what was there."""
State = Literal["to do", "done", "stale"]


class Store(Ledger):
    """The ledger of a folder of traces."""

    def __init__(self, folder: Path, folder_option: str = "DIR") -> None:
        """Open the ledger in `folder`. Raises RunFolderError when it is damaged."""
        super().__init__(folder, MANIFEST, folder_option=folder_option, command=self._command)

    @classmethod
    def make(cls, folder: Path) -> "Store":
        """Return the store in a folder, which may be new.

        Raises RunFolderError when the folder holds other files.
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
        """Return the store in a folder. Raises RunFolderError when there is none."""
        if not (folder / MANIFEST).exists():
            raise RunFolderError(
                f"{folder} has no {MANIFEST}: nothing was read into it. "
                f"First: hf-rlhf traces read FILE --out {folder}"
            )
        return cls(folder)

    def report(self, step: str) -> Mapping[str, Any]:
        """Return what came of a step, and how it went.

        Raises RunFolderError when it is not done, or what it was made from has changed.
        """
        entry = self.entry(step)
        return {**entry["result"], **entry["notes"]}

    def settings(self, step: str) -> Mapping[str, Any]:
        """Return the settings that a step was done with; {} if it was not."""
        entry = self.entries().get(step)
        return dict(entry["inputs"]) if entry else {}

    def state(self, step: str, settings: Mapping[str, Any] | None = None) -> State:
        """Return how a step stands; with `settings`, it is stale if it was done with others."""
        reasons = self.reasons(step, settings)
        if reasons is None:
            return "to do"
        return "stale" if reasons else "done"

    def check(self, step: str, settings: Mapping[str, Any], *, overwrite: bool = False) -> State:
        """Return how a step stands.

        Raises RunFolderError, with the differences, when it was done with other settings and
        `overwrite` is not set.
        """
        if not overwrite:
            self.refuse_changed(step, settings)
        return self.state(step, settings)

    def _command(self, step: str) -> str:
        words = f"FILE --out {self.folder}" if step == "read" else self.folder
        return f"hf-rlhf traces {step} {words}"


def _holds_other_files(folder: Path) -> bool:
    from hf_rlhf.storage import LOCK_NAME, OWNER_NAME

    if not folder.is_dir():
        return folder.exists()
    # A process that was killed before it wrote the ledger leaves these.
    ours = (
        "pipeline",
        LOCK_NAME,
        OWNER_NAME,
        f".{MANIFEST}.",
        f".{TRACES}.",
        f".{REJECTS}.",
        REFUSED,
    )
    return any(not path.name.startswith(ours) for path in folder.iterdir())
