"""The ledger of a workspace: the inputs and outputs of each step, and fingerprints of its rows."""

from array import array
from pathlib import Path

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps import Ledger as StepLedger
from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_roles.data import Inspected
from hf_rlhf_roles.workspace import LEDGER, Workspace


class Ledger(StepLedger):
    """The ledger of a workspace; the name of a step is `role/stage`."""

    def __init__(self, workspace: Workspace) -> None:
        """Open it; a new ledger is empty. Raises RunFolderError if it is damaged."""
        super().__init__(
            workspace.folder,
            LEDGER,
            folder_option="--workspace",
            command=lambda step: "hf-rlhf roles train --role {} --stage {}".format(
                *step.split("/")
            ),
        )
        self.workspace = workspace

    def is_isolated(self, key: str) -> bool:
        """Return whether a step's role is isolated, or was when the step was trained.

        The workspace may no longer list the role.
        """
        role = self.workspace.roles.get(key.split("/")[0])
        trained_so: bool = self.entries()[key]["result"]["isolated"]
        return trained_so or (role is not None and role.isolated)

    def adapters(self) -> dict[str, str]:
        """Return the adapter's folder of each finished step."""
        return {key: entry["result"]["adapter"] for key, entry in self.entries().items()}

    def in_use(self) -> dict[str, str]:
        """Return the newest step of each folder `adapters/ROLE`, whose adapter is in use there."""
        return {entry["result"]["placed"]: key for key, entry in self.entries().items()}

    def fingerprints(self, key: str) -> "array[int]":
        """Return the fingerprints of the rows that a step was trained on."""
        path = self._fingerprints(key)
        if not path.exists():
            raise RunFolderError(
                f"{path}, the fingerprints of the rows of {key}, is missing: the workspace is "
                f"incomplete. Restore it, or train {key} again."
            )
        numbers = array("Q")
        numbers.frombytes(path.read_bytes())
        return numbers

    def write_fingerprints(self, key: str, data: Inspected) -> None:
        """Write the fingerprints of a step's rows beside the ledger."""
        atomic_write_bytes(self._fingerprints(key), data.marks.tobytes())

    def _fingerprints(self, key: str) -> Path:
        return self.folder / "ledger" / f"{key.replace('/', '.')}.rows"
