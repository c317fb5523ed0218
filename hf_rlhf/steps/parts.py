"""Parts of a long step: numbered JSON files for the same inputs.

Each file is written atomically by the process that owns it, so a killed process continues with its
first missing part.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps.digests import plain
from hf_rlhf.storage.files import atomic_write_json, atomic_write_text

INPUTS = "inputs.json"


class PartFiles:
    """A folder of parts; several processes may write their shares, and all read all parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reset(self, inputs: Mapping[str, Any]) -> bool:
        """Prepare the folder for `inputs`, and delete the parts of other inputs.

        Returns whether anything was deleted. A single process may call this, while the others wait.
        """
        # Parts without inputs are left over from an interrupted deletion.
        stale = self._inputs() != plain(inputs) and any(self.folder.glob("*.json"))
        if stale:
            shutil.rmtree(self.folder)
        atomic_write_json(self.folder / INPUTS, plain(inputs))
        return stale

    def missing(self, kind: str, count: int, process: int = 0, processes: int = 1) -> list[int]:
        """Return the numbers below `count` of the parts that this process still has to write."""
        share = range(process, count, processes)
        return [number for number in share if not self._path(kind, number).exists()]

    def write(self, kind: str, number: int, value: Any) -> None:
        """Write a part as JSON."""
        atomic_write_text(self._path(kind, number), json.dumps(value))

    def read(self, kind: str, number: int) -> Any:
        """Return a part. Raises RunFolderError if it is missing or damaged."""
        path = self._path(kind, number)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}). Restore it, or delete it to have it made again."
            ) from error

    def read_all(self, kind: str) -> list[Any]:
        """Return the existing parts of a kind by number. Raises like `read`."""
        numbers = (path.stem.rpartition("-")[2] for path in self.folder.glob(f"{kind}-*.json"))
        return [self.read(kind, number) for number in sorted(map(int, numbers))]

    def _inputs(self) -> Any:
        try:
            return json.loads((self.folder / INPUTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:05d}.json"
