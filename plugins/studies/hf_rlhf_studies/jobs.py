"""Run jobs, each in a process of its own, several at once, and stop them properly."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import FrameType

from hf_rlhf.training import LAUNCHED_BY

POLL_SECONDS = 0.1
_LOG_END = 100_000
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: ?)?"
    r"(?!subprocess\.CalledProcessError|torch\.distributed\.elastic\.)"
    r"((?:error|[\w.]*(?:Error|Exception)): .*(?:\n[ \t]+\S.*)*)",
    re.M,
)


@dataclass(frozen=True)
class Job:
    """One command: its title for people, its words, where its output goes."""

    title: str
    command: tuple[str, ...]
    log: Path


@dataclass(frozen=True)
class JobEnd:
    """How a job ended."""

    job: Job
    status: int
    """The exit status; negative for a signal."""
    seconds: float
    error: str
    """Its last error or its signal, in a line, if it failed."""
    stopped: bool = False
    """Whether all jobs were being stopped."""


@dataclass
class _Stop:
    signal: int | None = None
    count: int = 0


@dataclass
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    slot: int
    log_before: int
    """Bytes of its log that earlier attempts wrote."""
    start: float = field(default_factory=time.monotonic)


def run_jobs(
    next_job: Callable[[], Job | None], at_once: int, ended: Callable[[JobEnd], None]
) -> int | None:
    """Run jobs, `at_once` at a time, until none runs and `next_job` has none.

    A job that fails stops no other. After SIGINT or SIGTERM no job is started, those that run get
    SIGTERM and are waited for, and a second signal kills them. Return the first signal, or None.
    """
    running: list[_Running] = []
    with _signals_noted() as stop:
        passed_on = 0
        while True:
            free = sorted(set(range(at_once)) - {entry.slot for entry in running})
            while free and stop.signal is None and (job := next_job()) is not None:
                running.append(_start(job, free.pop(0)))
            if not running:
                return stop.signal
            if stop.count > passed_on:
                passed_on = stop.count
                for item in running:
                    _send(item.process, signal.SIGTERM if passed_on == 1 else signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            for item in [entry for entry in running if _has_ended(entry.process, stop)]:
                running.remove(item)
                ended(_end_of(item, stop))


def _start(job: Job, slot: int) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    # `{job}` lets each of several runs at once have a device, or a port, of its own.
    command = [word.replace("{job}", str(slot)) for word in job.command]
    with job.log.open("ab") as log:
        before = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # So that it ends when this process is killed.
            env={**os.environ, LAUNCHED_BY: "study"},
            # Ctrl-C in the terminal is for this process, which passes it on once.
            start_new_session=True,
        )
    return _Running(job, process, slot, before)


def _end_of(ended: _Running, stop: _Stop) -> JobEnd:
    status = ended.process.returncode
    seconds = time.monotonic() - ended.start
    error = last_error(ended.job.log, ended.log_before, status) if status else ""
    return JobEnd(ended.job, status, seconds, error, stop.signal is not None)


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a launcher and to all that it has launched."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # it has just ended


def _has_ended(process: "subprocess.Popen[bytes]", stop: _Stop) -> bool:
    if process.poll() is None:
        return False
    if stop.signal is None:
        return True
    # A launcher may end at once, and leave its workers to their last save.
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@contextmanager
def _signals_noted() -> Iterator[_Stop]:
    stop = _Stop()

    def note(number: int, frame: FrameType | None) -> None:
        stop.signal = stop.signal or number
        stop.count += 1

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_error(log: Path, since: int, status: int) -> str:
    """Return why a run failed, in a line: what its log says from byte `since` on, or its signal.

    That is its last error, with the lines indented under it; not the launcher's, which comes after
    it and says only that there was one.
    """
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _LOG_END))
        text = file.read().decode(errors="replace").rstrip()
    if errors := _ERROR.findall(text):
        result = errors[-1]
    elif status < 0:
        result = f"killed by {signal.Signals(-status).name}"
    else:
        result = text.rpartition("\n")[2] or f"exit status {status}"
    return shorten(result, 400, placeholder=" ...")
