"""The input of a build, and the outcome of every row."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps import Recording
from hf_rlhf_traces.reading import Options, Rejected
from hf_rlhf_traces.sources import files_of, hub_source
from hf_rlhf_traces.store import REFUSED, REJECTS, Store
from hf_rlhf_traces.tally import Tally


@dataclass(frozen=True)
class Reading:
    """The files to read, the settings, and the output folder."""

    files: Sequence[str]
    """As returned by `files_of`."""
    out: Path
    options: Options
    validation_ratio: float = 0.1
    seed: int = 42
    max_rejected_share: float = 0.05
    overwrite: bool = False

    @classmethod
    def of(cls, sources: Sequence[str], out: Path, options: Options, **others: Any) -> "Reading":
        """Return the reading of files, folders and Hub datasets.

        Raises DataError for any other source.
        """
        return cls(files_of(sources, out, options), out, options, **others)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the result, without the contents of the files."""
        return {
            "files": [
                os.path.abspath(file) if os.path.exists(file) else file for file in self.files
            ],
            **asdict(self.options),
            "validation_ratio": self.validation_ratio,
            "seed": self.seed,
            "max_rejected_share": self.max_rejected_share,
        }

    def sources(self) -> list[dict[str, Any]]:
        """Return the identity of each file's present version."""
        return [_version(file, self.options) for file in self.files]

    def is_done(self, store: Store, sources: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the same files were read before.

        Raises RunFolderError if the settings differ without `overwrite`.
        """
        if store.check("build", self.settings(), overwrite=self.overwrite) != "done":
            return False
        before = store.report("build")["sources"]
        same = len(sources) == len(before) and all(
            # If the Hub cannot be reached, its rows count as unchanged.
            was.get(key) == value
            for was, now in zip(before, sources, strict=True)
            for key, value in now.items()
            if key != "commit" or value
        )
        return same and (self.out / REJECTS).is_file()

    @contextmanager
    def tallied(
        self, recording: Recording, sources: Sequence[Mapping[str, Any]]
    ) -> Iterator[Tally]:
        """Yield the tally of the rows; at the end, write its counts into the recording.

        Raises DataError if too many rows were rejected.
        """
        began = time.monotonic()
        tally = Tally(self.seed, self.out, self.files)
        yield tally
        tally.refuse_if_more(self.max_rejected_share)
        recording.result.update(tally.report(self.validation_ratio))
        recording.result["content"] = tally.content
        recording.notes["sources"] = sources
        recording.notes["seconds"] = round(time.monotonic() - began, 3)


def write_reject(file: IO[bytes], row: Rejected) -> None:
    """Write a line of rejects.jsonl."""
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    file.write(msgspec.json.encode(values) + b"\n")


@contextmanager
def rejects_file(out: Path) -> Iterator[IO[bytes]]:
    """Open a file that becomes rejects.jsonl if the block ends without an error.

    The rejects of a failed build stay beside the last build's.
    """
    try:
        with (out / REFUSED).open("wb") as file:
            yield file
        os.replace(out / REFUSED, out / REJECTS)
    except OSError as error:
        raise RunFolderError(f"{out / REJECTS} cannot be written: {error}.") from error


def _version(file: str, options: Options) -> dict[str, Any]:
    if not os.path.exists(file):
        return {"path": file, "commit": hub_source(file, options).commit}
    stat = os.stat(file)
    return {"path": os.path.abspath(file), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
