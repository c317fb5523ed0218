"""What was made of blocks, kept on disk until it is put together: by whom, does not matter.

DIR/pipeline/KEY/
  read.json, steps.json    the blocks of each stage
  parts/                   what was made of each block; deleted when it is put together
  logs/                    datatrove's: logs and statistics of each task

KEY stands for the files and settings, so that nothing is ever made of other files' parts.
"""

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hf_rlhf.errors import DataError
from hf_rlhf.storage import atomic_write_bytes, atomic_write_json
from hf_rlhf_traces.engine import Block

R = TypeVar("R")


@dataclass(frozen=True)
class Spool:
    """Parts of a stage. They are pickled: the folder must be one that only you write to."""

    folder: Path
    stage: str

    def plan(self, blocks: Iterable[Block]) -> int:
        """Note the blocks of the stage; return how many there are."""
        rows = [(str(one.path), one.start, one.size, one.first) for one in blocks]
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic_write_json(self.folder / f"{self.stage}.json", rows)
        return len(rows)

    def blocks(self, rank: int, tasks: int) -> Iterator[Block]:
        """Yield the blocks of one of some tasks that are not made yet."""
        rows = json.loads((self.folder / f"{self.stage}.json").read_text(encoding="utf-8"))
        for path, start, size, first in rows[rank::tasks]:
            block = Block(Path(path), start, size, first)
            if not self._place(block).exists():
                yield block

    def keep(self, block: Block, made: object) -> None:
        """Keep what was made of a block, whole or not at all."""
        place = self._place(block)
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(place, pickle.dumps(made, pickle.HIGHEST_PROTOCOL))

    def each(self, work: Callable[[Block], R], items: Iterable[Block]) -> Iterator[R]:
        """Yield what was made of each block. Raises DataError where that is not there.

        `work` is what it was made by, and is not called.
        """
        for block in items:
            place = self._place(block)
            if not place.exists():
                raise DataError(
                    f"{place} is not there: the tasks of `{self.stage}` have not all ended well. "
                    "The same command makes those that are missing."
                )
            made: R = pickle.loads(place.read_bytes())
            yield made

    def clear(self) -> None:
        """Delete the parts."""
        shutil.rmtree(self.folder / "parts" / self.stage, ignore_errors=True)

    def _place(self, block: Block) -> Path:
        file = hashlib.blake2b(str(block.path).encode(), digest_size=6).hexdigest()
        return self.folder / "parts" / self.stage / f"{file}-{block.start:015}"
