"""What iterative DPO keeps in the run folder: a folder for each policy that it sampled from.

`iterations/policy-0003/` has what the policy after three iterations wrote: completions for the
fourth iteration's prompts (`rollouts-*.json`), completions for held-out prompts (`held_out-*`),
and the reference's log-probabilities of the fourth iteration's pairs (`reference-*`). Each file is
written whole or not at all, by the process whose share it is, so a run that is killed goes on at
the first file that is missing.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage import atomic_dir, atomic_write_text

_POLICY = "policy.json"


class Store:
    """The files of `iterations/`, by policy (the number of iterations behind it), kind, number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, policy: int) -> Path:
        """Return a policy's folder."""
        return self.folder / f"policy-{policy:04}"

    def begin(self, policy: int, fingerprint: str) -> bool:
        """Make a policy's folder ready; return whether what another policy wrote was deleted.

        That is what is left of steps that have been lost, and are now done again on a machine
        that rounds otherwise. Only one process may call this, while the others wait.
        """
        path = self.of(policy) / _POLICY
        mine = path.exists() and json.loads(path.read_text()) == {"weights": fingerprint}
        # Files without a checksum are what was left when deleting them was broken off.
        stale = not mine and any(self.of(policy).glob("*"))
        if stale:
            shutil.rmtree(self.of(policy))
        if not mine:
            atomic_write_text(path, json.dumps({"weights": fingerprint}))
        return stale

    def has(self, policy: int, kind: str, number: int) -> bool:
        """Return whether a file has been written."""
        return self._path(policy, kind, number).exists()

    def write(self, policy: int, kind: str, number: int, rows: list[Any]) -> None:
        """Write one file, whole or not at all."""
        atomic_write_text(self._path(policy, kind, number), json.dumps(rows))

    def read(self, policy: int, kind: str, number: int) -> list[Any]:
        """Return what was written. Raises RunFolderError where it is gone or damaged."""
        path = self._path(policy, kind, number)
        try:
            rows = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}), and its iteration has begun to train on it. "
                "Restore it, or begin anew in another `output_dir`."
            ) from error
        if not isinstance(rows, list):
            raise RunFolderError(f"{path} holds {type(rows).__name__}, expected a list.")
        return rows

    def read_all(self, policy: int, kind: str) -> list[Any]:
        """Return the rows of all files of a kind that are there, in order."""
        result = sorted(self.of(policy).glob(f"{kind}-*.json"))
        return [row for number in range(len(result)) for row in self.read(policy, kind, number)]

    def adopt(self, other: Path) -> None:
        """Copy the policies that another run's folder has, and this one lacks."""
        for folder in sorted(other.glob("policy-*")):
            if not (self.folder / folder.name).exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                with atomic_dir(self.folder / folder.name) as new:
                    shutil.copytree(folder, new, dirs_exist_ok=True)

    def _path(self, policy: int, kind: str, number: int) -> Path:
        return self.of(policy) / f"{kind}-{number:05}.json"


def fingerprint(model: Any) -> str:
    """Return a checksum of a model's trainable weights."""
    import torch

    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(name.encode())
            flat = weight.detach().cpu().contiguous().reshape(-1)
            digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()
