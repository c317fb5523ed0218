"""Many bytes, from a worker to the process that started it: by a file, not by the pipe.

A pipe takes 64 KiB at a time and copies them six times, in the one process that all workers give
to, which then is what bounds them.
"""

import mmap
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SMALL = 1 << 16
_folder: Path | None = None


def hand_over_in(folder: Path) -> None:
    """From now on, bytes that this process sends are left in a folder, for the receiver to take."""
    global _folder
    _folder = folder


@dataclass(frozen=True, slots=True)
class Bulk:
    """Bytes, or their place in memory. Pickled by a worker, they are a file that is read once."""

    content: bytes | mmap.mmap

    def __len__(self) -> int:
        """How many there are."""
        return len(self.content)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the bytes in the folder, if this process has one."""
        if _folder is None or len(self) < _SMALL:
            return Bulk, (bytes(self.content),)
        with tempfile.NamedTemporaryFile(dir=_folder, delete=False) as file:
            file.write(self.content)
        return _taken, (Path(file.name),)


def _taken(path: Path) -> Bulk:
    with path.open("rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    path.unlink()
    return Bulk(content)
