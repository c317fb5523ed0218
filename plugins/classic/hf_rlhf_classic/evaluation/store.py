"""What was generated and scored, kept chunk by chunk, so that nothing is made twice."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage import atomic_write_json

IDENTITY = "identity.json"


def fingerprint(value: Any) -> str:
    """Return a short hash of what is JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Take `folder` for what `identity` describes.

    Raises RunFolderError, with the difference, when it holds something else.
    """
    path = folder / IDENTITY
    if not path.exists():
        atomic_write_json(path, dict(identity))
        return
    there = json.loads(path.read_text(encoding="utf-8"))
    changed = [key for key in identity if there.get(key) != identity[key]]
    if changed:
        shown = "".join(
            f"\n  - {key}: {json.dumps(there.get(key))} -> {json.dumps(identity[key])}"
            for key in changed
        )
        raise RunFolderError(
            f"{folder} holds completions of another evaluation. What differs (there -> here):"
            f"{shown}\nGive this one another `--out`, or delete that folder."
        )


class Chunks:
    """A folder of JSON files, one a chunk; a file that is there is whole, and is not made again.

    Of several processes each makes its share; reading sees all of them.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count

    def missing(self, process: int = 0, processes: int = 1) -> list[int]:
        """Return which chunks this process has to make."""
        return [
            place
            for place in range(process, self.count, processes)
            if not self._path(place).exists()
        ]

    def make(self, places: Sequence[int], work: Callable[[int], Any]) -> None:
        """Write `work(place)`, which is JSON, for each place."""
        for place in places:
            atomic_write_json(self._path(place), work(place))

    def read(self) -> list[Any]:
        """Return all chunks, in order. Raises RunFolderError for one that is damaged."""
        return [self.chunk(place) for place in range(self.count)]

    def chunk(self, place: int) -> Any:
        """Return one chunk. Raises RunFolderError when it is missing or damaged."""
        path = self._path(place)
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}). Delete it, and it is made again."
            ) from error

    def _path(self, place: int) -> Path:
        return self.folder / f"{place:05d}.json"
