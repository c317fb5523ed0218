"""A chain of tasks in a folder: report done and stale tasks, and run the others."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.errors import ConfigError, RunFolderError
from hf_rlhf.formatting import duration, visible
from hf_rlhf.steps.jobs import Job, JobEnd, run_jobs
from hf_rlhf.steps.ledger import Ledger, Recording
from hf_rlhf.storage.record import LOCK_NAME, RECORD_NAME, load_record

ORPHAN_SECONDS = 60.0
"""How long runs of a killed chain may continue: `stop_grace`, and time to close the record."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A step of a chain: `work` in this process, or `command` in a separate process."""

    step: str
    inputs: Callable[[], Mapping[str, Any]]
    after: tuple[str, ...] = ()
    """Steps whose results it reads."""
    output: Path | None = None
    """The file or folder that it writes; if missing, the step is not done."""
    title: str = ""
    work: Callable[[Recording], None] | None = None
    command: Callable[[], Sequence[str]] | None = None
    log: Path = Path()
    trains: bool = False
    """Whether `output` is a run folder, in which an interrupted run continues."""
    cheap: bool = False
    """Whether it is repeated without `redo`."""


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task: `done`, `to do`, `waiting`, `failed` or `stale`; and why."""

    task: Task
    state: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.task.step}: {self.state}" + (f": {self.why}" if self.why else "")


class Chain:
    """Tasks in order of their dependencies, and their ledger."""

    def __init__(self, ledger: Ledger, tasks: Sequence[Task]) -> None:
        self.ledger = ledger
        self.tasks = tasks

    def statuses(self) -> list[TaskStatus]:
        """Return the state of each task, in order."""
        statuses: dict[str, TaskStatus] = {}
        for task in self.tasks:
            statuses[task.step] = self._status(task, statuses)
        return list(statuses.values())

    def _status(self, task: Task, before: Mapping[str, TaskStatus]) -> TaskStatus:
        due = ", ".join(s for s in task.after if s in before and before[s].state != "done")
        missing = task.output is not None and not task.output.exists()
        if missing or self.ledger.reasons(task.step) is None:
            return self._unfinished(task, due)
        if due:
            return TaskStatus(task, "stale", f"{due} will be done anew")
        try:
            reasons = self.ledger.reasons(task.step, task.inputs(), task.after) or []
        except ConfigError as error:
            reasons = [str(error.problems[0])]
        return TaskStatus(task, "stale" if reasons else "done", "; ".join(reasons))

    def _unfinished(self, task: Task, due: str) -> TaskStatus:
        if due and task.trains and task.output and (task.output / RECORD_NAME).exists():
            # It would resume from a checkpoint that started from other weights.
            return TaskStatus(task, "stale", f"it began before {due} is done anew")
        if due:
            return TaskStatus(task, "waiting", f"for {due}")
        error = self.ledger.failures().get(task.step)
        return TaskStatus(task, "failed", error) if error else TaskStatus(task, "to do")

    def do(self, task: Task) -> dict[str, Any]:
        """Run a task in this process unless it is done, and return its result.

        Raises the errors of `work`; a repeated call continues.
        """
        assert task.work is not None, "a task with a command is a job"
        inputs = task.inputs()
        if self.ledger.reasons(task.step, inputs, task.after) != []:
            started = time.perf_counter()
            with self.ledger.recording(task.step, inputs, after=task.after) as recording:
                task.work(recording)
                recording.notes["seconds"] = round(time.perf_counter() - started, 1)
        return self.ledger.result(task.step)

    def run_jobs(self, at_once: int, *, redo: bool) -> int | None:
        """Run unfinished tasks, `at_once` at a time, each in a separate process.

        A failed task stops only its dependents. Return the signal that stopped all, or None. Raises
        RunFolderError if tasks are stale and `redo`, which deletes their output, is not set.
        """
        statuses = self.statuses()
        stale = [status for status in statuses if status.state == "stale"]
        if not redo and (expensive := [each for each in stale if not each.task.cheap]):
            text = "".join(f"\n  - {each.task.step}: {each.why}" for each in expensive)
            raise RunFolderError(
                f"{self.ledger.folder} has results of other settings (there -> here):{text}\nPut "
                f"the settings back as they were, choose another {self.ledger.folder_option}, or "
                "add --redo: it deletes these runs and does them anew."
            )
        todo = [status.task for status in statuses if status.state != "done"]
        for task in [status.task for status in stale]:
            _delete(task.output)
        for step in self.ledger.entries().keys() & {task.step for task in todo}:
            self.ledger.remove(step)  # its output was deleted, and a partial new output is not done
        await_orphans([task.output for task in todo if task.trains and task.output])
        done = {task.step for task in self.tasks} - {task.step for task in todo}
        queue = _Queue(self.ledger, todo, done, at_once)
        return run_jobs(queue.next_job, at_once, queue.ended)


def _delete(output: Path | None) -> None:
    if output is not None and output.is_dir():
        shutil.rmtree(output)
    elif output is not None:
        output.unlink(missing_ok=True)


def await_orphans(folders: Sequence[Path]) -> None:
    """Wait for runs of a killed chain, which may save once more before they end.

    A run refuses a folder that stays locked for longer, and reports the owner.
    """
    from filelock import FileLock, Timeout

    until = time.monotonic() + ORPHAN_SECONDS
    for folder in [folder for folder in folders if (folder / LOCK_NAME).exists()]:
        lock = FileLock(folder / LOCK_NAME)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for the run that is still alive in {folder}", flush=True)
            with suppress(Timeout):
                lock.acquire(timeout=max(until - time.monotonic(), 0))
        finally:
            lock.release()


@dataclass
class _Queue:
    """The queue of tasks: each starts once its inputs are done, and prints a line."""

    ledger: Ledger
    waiting: list[Task]
    done: set[str]
    at_once: int
    running: dict[Job, tuple[int, Task]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.count = len(self.waiting)

    def next_job(self) -> Job | None:
        """Return the next task that can start as a job, or None; a ConfigError fails its task."""
        for task in [task for task in self.waiting if self.done.issuperset(task.after)]:
            assert task.command is not None, "a task without a command is done by `Chain.do`"
            self.waiting.remove(task)
            number = self.count - len(self.waiting)
            try:
                job = Job(task.step, tuple(task.command()), task.log)
            except ConfigError as error:
                self.ledger.fail(task.step, str(error.problems[0]))
                self._print(number, task, f"failed: {error.problems[0]}")
                continue
            self.running[job] = (number, task)
            self._print(number, task, f"started; its output: {task.log}")
            return job
        return None

    def ended(self, end: JobEnd) -> None:
        """Record the end of a task, and print a line."""
        number, task = self.running.pop(end.job)
        state = _outcome(task, end)
        error = ""
        if state == "finished":
            self._record(task, end)
            self.done.add(task.step)
        elif state == "failed":
            error = end.error or f"{task.output and task.output.name} was not written"
        self.ledger.fail(task.step, error)
        self.seconds.append(end.seconds)
        words = f"{state} after {duration(end.seconds)}" + (f": {error}" if error else "")
        left = len(self.waiting) + len(self.running)
        if left and not end.stopped:
            mean = sum(self.seconds) / len(self.seconds)
            words += f"; about {duration(mean * left / self.at_once)} left"
        self._print(number, task, words)

    def _record(self, task: Task, end: JobEnd) -> None:
        with self.ledger.recording(task.step, task.inputs(), after=task.after) as recording:
            if task.trains and task.output:
                # Another run yields another model, so measurements of the old model are stale.
                recording.result["run_id"] = load_record(task.output).run_id
            recording.notes["seconds"] = end.seconds

    def _print(self, number: int, task: Task, text: str) -> None:
        print(visible(f"[{number}/{self.count}] {task.title or task.step}: {text}"), flush=True)


def _outcome(task: Task, end: JobEnd) -> str:
    output = task.output
    if task.trains and output is not None:
        begun = (output / RECORD_NAME).exists()
        status = str(load_record(output).status) if begun else "not run"
        if status == "finished" or (end.stopped and begun):
            return status
    elif end.status == 0 and (output is None or output.exists()):
        return "finished"
    return "stopped" if end.stopped else "failed"
