"""The summaries written so far, on disk: appended as they come, and in the samples' order at last.

A line of summaries.jsonl is a sample's summary; a line of failed.jsonl says why there is none. Both
name the sample (`id`) and what the summary was made from (`made`: a hash of the sample, of how it
is requested and of the model). A crash leaves at most an incomplete last line, which is cut off.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from hf_rlhf.errors import DataError, RunFolderError

FOLDER = "summaries"
SUMMARIES, FAILED = "summaries.jsonl", "failed.jsonl"
Line = Mapping[str, Any]


class SummaryLog:
    """What is known of a store's summaries. Holds some 250 bytes for each in memory."""

    def __init__(self, folder: Path, by: str) -> None:
        """Open, and mend, the files in a folder. Raises DataError for lines that are neither.

        Only lines whose `made` begins with `by` are known: others were made with other settings.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.failed_path = folder / SUMMARIES, folder / FAILED
        for path in (self.path, self.failed_path):
            _cut_incomplete_line(path)
        self.offsets = {
            line["made"]: offset
            for offset, line in _lines(self.path)
            if line["made"].startswith(by)
        }
        """Where each summary's line begins."""
        self.failures: dict[str, Line] = {
            line["made"]: line
            for _, line in _lines(self.failed_path)
            if line["made"].startswith(by) and line["made"] not in self.offsets
        }
        """The last failure of each sample that has no summary."""
        self._files: list[IO[bytes]] = [p.open("ab") for p in (self.path, self.failed_path)]

    def add(self, summary: Line) -> None:
        """Append a summary."""
        self.offsets[summary["made"]] = self._files[0].tell()
        self.failures.pop(summary["made"], None)
        _append(self._files[0], summary)

    def fail(self, failure: Line) -> None:
        """Append a failure, with the number of tries so far."""
        before = self.failures.get(failure["made"], {}).get("tries", 0)
        self.failures[failure["made"]] = {**failure, "tries": before + 1}
        _append(self._files[1], self.failures[failure["made"]])

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def sort(self, order: Iterable[str]) -> None:
        """Close, and write both files again: only what `order` names, in that order.

        So they are the same however often the work was interrupted.
        """
        self.close()
        wanted = list(order)
        offsets = [self.offsets[created] for created in wanted if created in self.offsets]
        _rewrite(self.path, _lines_at(self.path, offsets))
        self.failures = {
            created: self.failures[created] for created in wanted if created in self.failures
        }
        failures = self.failures.values()
        _rewrite(self.failed_path, (orjson.dumps(failure) + b"\n" for failure in failures))


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the disk refuses, a full one above all, into RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}. Free space; the summaries so "
            "far are kept, and the same command continues."
        ) from error


def summaries_of(folder: Path) -> Iterator[Line]:
    """Yield the summaries of a folder that is sorted, in the order of the samples."""
    return (line for _, line in _lines(folder / SUMMARIES))


def failures_of(folder: Path) -> dict[str, str]:
    """Return why the samples of a folder that is sorted have no summary, by their ids."""
    return {line["id"]: line["reason"] for _, line in _lines(folder / FAILED)}


def _append(file: IO[bytes], line: Line) -> None:
    file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    file.flush()


def _cut_incomplete_line(path: Path) -> None:
    path.touch()
    complete = 0
    with path.open("rb+") as file:
        for line in file:
            complete += len(line) if line.endswith(b"\n") else 0
        file.truncate(complete)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield where each line begins, and its content."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                content = orjson.loads(line)
                yield offset, {"id": content["id"], "made": content["made"], **content}
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(
                    f"{path}:{number}: is not what `hf-rlhf traces summarize` writes ({error!r}). "
                    "Delete the line; its summary is made again."
                ) from error
            offset += len(line)


def _lines_at(path: Path, offsets: Iterable[int]) -> Iterator[bytes]:
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
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
