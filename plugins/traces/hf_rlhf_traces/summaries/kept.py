"""The summaries made so far, on disk: appended as they come, and in the samples' order in the end.

A line of summaries.jsonl is a sample's summary; a line of failed.jsonl says why there is none. Both
name the sample (`id`) and what the summary was made from (`made`: a hash of the sample, of how it
is asked for and of the model). A crash leaves at most a torn last line, which is cut off.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from hf_rlhf.errors import DataError, RunFolderError

FOLDER = "summaries"
SUMMARIES, FAILED = "summaries.jsonl", "failed.jsonl"


class Kept:
    """What is known of a store's summaries. Holds some 250 bytes for each in memory."""

    def __init__(self, folder: Path, by: str) -> None:
        """Open, and mend, the files in a folder. Raises DataError for lines that are neither.

        Of what is there, that is known whose `made` begins with `by`: the rest was made otherwise.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.failed_path = folder / SUMMARIES, folder / FAILED
        for path in (self.path, self.failed_path):
            _mend(path)
        self.places: dict[str, int] = {}
        """Where each summary's line begins."""
        for place, line in _lines(self.path):
            if line["made"].startswith(by):
                self.places[line["made"]] = place
        self.failures: dict[str, Mapping[str, Any]] = {
            line["made"]: line
            for _, line in _lines(self.failed_path)
            if line["made"].startswith(by) and line["made"] not in self.places
        }
        """The last failure of each that has no summary."""
        self._files: list[IO[bytes]] = [p.open("ab") for p in (self.path, self.failed_path)]

    def add(self, summary: Mapping[str, Any]) -> None:
        """Append a summary."""
        file = self._files[0]
        self.places[summary["made"]] = file.tell()
        self.failures.pop(summary["made"], None)
        _append(file, summary)

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Append a failure; `tries` of the ones before are added to it."""
        before = self.failures.get(failure["made"], {}).get("tries", 0)
        whole = {**failure, "tries": before + 1}
        self.failures[failure["made"]] = whole
        _append(self._files[1], whole)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            file.close()

    def settle(self, order: Iterable[str]) -> None:
        """Close, and write both files anew: only what `order` names, in that order.

        So that they are the same however often the work was interrupted.
        """
        self.close()
        wanted = list(order)
        places = [self.places[made] for made in wanted if made in self.places]
        if places != sorted(places) or len(places) != _count(self.path):
            _rewrite(self.path, _picked(self.path, places))
        self.failures = {made: self.failures[made] for made in wanted if made in self.failures}
        failures = self.failures.values()
        _rewrite(self.failed_path, (orjson.dumps(one) + b"\n" for one in failures))


@contextmanager
def written_in(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses, a full one above all, into RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}. Free space; what was made is "
            "kept, and the same command goes on."
        ) from error


def summaries_of(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the summaries of a folder that is settled, in the order of the samples."""
    return (line for _, line in _lines(folder / SUMMARIES))


def content_of(folder: Path) -> str:
    """Return 32 hex digits of what a folder holds, which are others if a byte of it is."""
    hashed = hashlib.sha256()
    for name in (SUMMARIES, FAILED):
        if (path := folder / name).exists():
            with path.open("rb") as file:
                hashed.update(hashlib.file_digest(file, "sha256").digest())
        hashed.update(b"\0")
    return hashed.hexdigest()[:32]


def failures_of(folder: Path) -> dict[str, str]:
    """Return why the samples of a folder that is settled have no summary, by their ids."""
    return {line["id"]: line["reason"] for _, line in _lines(folder / FAILED)}


def _append(file: IO[bytes], line: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    file.flush()


def _mend(path: Path) -> None:
    """Cut off a last line that has no end."""
    path.touch()
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where each line begins, and what it says."""
    place = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                read = orjson.loads(line)
                yield place, {"id": read["id"], "made": read["made"], **read}
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}:{number}: is not what `hf-rlhf traces summarize` writes ({error!r}). "
                    "Delete the line: what it held is made again."
                ) from error
            place += len(line)


def _count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _picked(path: Path, places: Iterable[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for place in places:
            file.seek(place)
            yield file.readline()


def _rewrite(path: Path, lines: Iterable[bytes]) -> None:
    temporary = path.with_name(f".{path.name}.{os.urandom(16).hex()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
