"""Run the runs of a sweep, each in a process of its own, and stop them properly."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import FrameType

from hf_rlhf.training.signals import LAUNCHED_BY

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
    """One run to be done: what it is called, how it is started, where its output goes."""

    said: str
    command: tuple[str, ...]
    log: Path


@dataclass
class Done:
    """How a job ended."""

    job: Job
    status: int
    """The exit status; negative for a signal."""
    seconds: float
    said: str = ""
    """Why it ended, if it failed: its own last error, or the signal."""
    stopped: bool = False
    """Whether the sweep was being stopped."""


@dataclass
class Stop:
    """Whether the sweep was asked to stop, and by which signal."""

    signal: int | None = None
    count: int = 0


@dataclass
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    slot: int
    log_before: int
    """Bytes of its log that earlier attempts wrote."""
    began: float = field(default_factory=time.monotonic)


def run_jobs(
    jobs: Sequence[Job], at_once: int, started: Callable[[Job], None], done: Callable[[Done], None]
) -> int | None:
    """Run every job, `at_once` at a time; tell of each start and end.

    A job that fails stops no other. After SIGINT or SIGTERM no job is started, those that run get
    SIGTERM and are waited for, and a second signal kills them. Return the first signal, or None.
    """
    waiting = list(jobs)
    running: list[_Running] = []
    with _stoppable() as stop:
        passed_on = 0
        while running or (waiting and stop.signal is None):
            free = sorted(set(range(at_once)) - {one.slot for one in running})
            while free and waiting and stop.signal is None:
                running.append(_start(waiting.pop(0), free.pop(0)))
                started(running[-1].job)
            if stop.count > passed_on:
                passed_on = stop.count
                for one in running:
                    _send(one.process, signal.SIGTERM if passed_on == 1 else signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            for one in [one for one in running if _ended(one.process, stop)]:
                running.remove(one)
                done(_how(one, stop))
    return stop.signal


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
            # So that it ends when the sweep is killed.
            env={**os.environ, LAUNCHED_BY: "sweep"},
            # Ctrl-C in the terminal is for the sweep, which passes it on once.
            start_new_session=True,
        )
    return _Running(job, process, slot, before)


def _how(ended: _Running, stop: Stop) -> Done:
    status = ended.process.returncode
    seconds = time.monotonic() - ended.began
    said = last_words(ended.job.log, ended.log_before, status)
    return Done(ended.job, status, seconds, said, stop.signal is not None)


def _send(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a launcher and to all that it has launched."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # it has just ended


def _ended(process: "subprocess.Popen[bytes]", stop: Stop) -> bool:
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
def _stoppable() -> Iterator[Stop]:
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.signal = stop.signal or number
        stop.count += 1

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_words(log: Path, since: int, status: int) -> str:
    """Return why a run failed, in a line: what its log says, from byte `since` on, or its signal.

    That is its last error, with the lines indented under it; not the launcher's, which comes after
    it and says only that there was one.
    """
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _LOG_END))
        text = file.read().decode(errors="replace").rstrip()
    if errors := _ERROR.findall(text):
        found = errors[-1]
    elif status < 0:
        found = f"killed by {signal.Signals(-status).name}"
    else:
        found = text.rpartition("\n")[2] or f"exit status {status}"
    return shorten(found, 400, placeholder=" ...")
