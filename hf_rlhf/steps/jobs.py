"""Start `hf_rlhf.train` as a process, and run several jobs at once."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from types import FrameType

from hf_rlhf.errors import HfRlhfError

LAUNCHED_BY = "HF_RLHF_LAUNCHED_BY"
"""Environment variable for a run that must end with its parent process."""
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
    """A command: its title, its words and the file for its output."""

    title: str
    command: tuple[str, ...]
    log: Path


@dataclass(frozen=True)
class JobEnd:
    """The end of a job."""

    job: Job
    status: int
    """The exit status; negative for a signal."""
    seconds: float
    error: str
    """Its last error or signal as a line, if it failed."""
    stopped: bool = False
    """Whether all jobs were being stopped."""


@dataclass
class _Running:
    job: Job
    process: "subprocess.Popen[bytes]"
    slot: int
    log_before: int
    """Bytes that earlier attempts wrote to its log."""
    start: float = field(default_factory=time.monotonic)

    def has_ended(self, stopping: bool) -> bool:
        # A launcher may exit at once while its workers still save.
        return self.process.poll() is not None and not (stopping and self.send(0))

    def send(self, number: int) -> bool:
        """Send a signal to a launcher and its processes; return whether any is left."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, stopping: bool) -> JobEnd:
        status = self.process.returncode
        seconds = time.monotonic() - self.start
        error = last_error(self.job.log, self.log_before, status) if status else ""
        return JobEnd(self.job, status, seconds, error, stopping)


def train_words(launch: Sequence[str], config: Path) -> list[str]:
    """Return the command line to train with a run file; `launch` is the launcher's command."""
    return [*launch, "-m", "hf_rlhf.train", "--config", str(config)]


def run_training(
    launch: Sequence[str], config: Path, options: Sequence[str] = (), *, log: Path | None = None
) -> int:
    """Train with a run file in a separate process, and return its exit status.

    Output goes to `log`, or to the terminal. Raises HfRlhfError if it cannot be started.
    """
    words = [*train_words(launch, config), *options]
    with log.open("w") if log else nullcontext() as output:
        try:
            process = subprocess.Popen(words, stdout=output, stderr=output, env=_environment())
        except OSError as error:
            raise HfRlhfError(f"launch: {words[0]}: {error.strerror}.") from error
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C is for both, and the training has yet to save
            raise


def _environment() -> dict[str, str]:
    return {**os.environ, LAUNCHED_BY: str(os.getpid())}


def run_jobs(
    next_job: Callable[[], Job | None], at_once: int, ended: Callable[[JobEnd], None]
) -> int | None:
    """Run jobs, `at_once` at a time, until none runs and `next_job` returns None.

    A failed job stops no other. After SIGINT or SIGTERM no job is started, and running jobs get
    SIGTERM and are awaited; a second signal kills them. Return the first signal, or None.
    """
    running: list[_Running] = []
    with _collected_signals() as signals:
        passed_on = 0
        while True:
            free = sorted(set(range(at_once)) - {entry.slot for entry in running})
            while free and not signals and (job := next_job()) is not None:
                running.append(_start(job, free.pop(0)))
            if not running:
                return signals[0] if signals else None
            if len(signals) > passed_on:
                passed_on = len(signals)
                for entry in running:
                    entry.send(signal.SIGTERM if passed_on == 1 else signal.SIGKILL)
            time.sleep(POLL_SECONDS)
            stopping = bool(signals)
            for entry in [entry for entry in running if entry.has_ended(stopping)]:
                running.remove(entry)
                ended(entry.end(stopping))


def _start(job: Job, slot: int) -> _Running:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    # `{job}` gives each concurrent run its own device or port.
    command = [word.replace("{job}", str(slot)) for word in job.command]
    with job.log.open("ab") as log:
        before = log.tell()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            # Ctrl-C in the terminal reaches this process, which forwards it once.
            start_new_session=True,
        )
    return _Running(job, process, slot, before)


@contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of ending."""
    signals: list[int] = []

    def collect(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, collect) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_error(log: Path, since: int, status: int) -> str:
    """Return the last error in a run's log from byte `since` on, as a line.

    Indented lines below an error belong to it. A launcher's subsequent error is skipped. Without an
    error: the signal, or the last line.
    """
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _LOG_END))
        text = file.read().decode(errors="replace").rstrip()
    if errors := _ERROR.findall(text):
        reason = errors[-1]
    elif status < 0:
        reason = f"killed by {signal.Signals(-status).name}"
    else:
        reason = text.rpartition("\n")[2] or f"exit status {status}"
    return shorten(reason, 400, placeholder=" ...")
