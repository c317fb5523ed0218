"""The parts of one long step: numbered JSON files that all belong to the same inputs.

Each file is written whole or not at all, by the process whose share it is, so a process that is
killed continues with the first part that is missing.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps.digests import differences, plain
from hf_rlhf.storage.files import atomic_write_json

INPUTS = "inputs.json"


class PartFiles:
    """A folder of parts; several processes may write their shares, all see all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def claim(self, inputs: Mapping[str, Any], *, folder_option: str = "folder") -> None:
        """Take the folder for parts made from `inputs`.

        Raises RunFolderError, with the differences, when it holds parts made from others. Only one
        process may call this or `reset`, while the others wait.
        """
        if lines := self._differences(inputs):
            text = "".join(f"\n  - {line}" for line in lines)
            raise RunFolderError(
                f"{self.folder} holds parts of other work. What differs (there -> here):{text}\n"
                f"Choose another {folder_option}, or delete that folder."
            )
        atomic_write_json(self.folder / INPUTS, plain(inputs))

    def reset(self, inputs: Mapping[str, Any]) -> bool:
        """Take the folder as `claim` does, but delete parts made from other inputs.

        Returns whether anything was deleted.
        """
        # Parts without inputs are what was left when deleting them was cut off.
        stale = bool(self._differences(inputs))
        if stale:
            shutil.rmtree(self.folder)
        atomic_write_json(self.folder / INPUTS, plain(inputs))
        return stale

    def missing(self, kind: str, count: int, process: int = 0, processes: int = 1) -> list[int]:
        """Return the numbers of the parts, of `count`, that this process still has to write."""
        share = range(process, count, processes)
        return [number for number in share if not self.exists(kind, number)]

    def exists(self, kind: str, number: int) -> bool:
        """Return whether a part has been written."""
        return self._path(kind, number).exists()

    def write(self, kind: str, number: int, value: Any) -> None:
        """Write one part, which is JSON."""
        atomic_write_json(self._path(kind, number), value)

    def read(self, kind: str, number: int) -> Any:
        """Return one part. Raises RunFolderError when it is missing or damaged."""
        path = self._path(kind, number)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}). Delete it, and it is made again."
            ) from error

    def read_all(self, kind: str) -> list[Any]:
        """Return the parts of a kind that are there, by number. Raises as `read` does."""
        numbers = (path.stem.rpartition("-")[2] for path in self.folder.glob(f"{kind}-*.json"))
        return [self.read(kind, number) for number in sorted(map(int, numbers))]

    def _differences(self, inputs: Mapping[str, Any]) -> list[str]:
        path = self.folder / INPUTS
        try:
            return differences(json.loads(path.read_text(encoding="utf-8")), inputs)
        except FileNotFoundError:
            return [f"it has no {INPUTS}"] if any(self.folder.glob("*.json")) else []
        except (OSError, ValueError) as error:
            return [f"its {INPUTS} cannot be read ({error})"]

    def _path(self, kind: str, number: int) -> Path:
        return self.folder / f"{kind}-{number:05d}.json"
