"""The folder of a study: which tasks are done, why others failed, the plan as first recorded."""

import difflib
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, RunFolderError
from hf_rlhf.config import RunFile
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import RECORD_NAME, atomic_write_json, now, redact_secrets
from hf_rlhf_studies.jobs import JobEnd
from hf_rlhf_studies.runs import Runs, Task, compared, record_of
from hf_rlhf_studies.study import Study

STATE_NAME = "study.json"
SCHEMA = 1


@dataclass(frozen=True)
class TaskStatus:
    """How a task stands: `done`, `to do`, `waiting`, `failed`, `stale`; and why."""

    task: Task
    state: str
    why: str = ""


class StudyFolder:
    """A study's output folder: `study.json`, `steps.json`, and what its tasks write."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.out = runs.out
        self.ledger = Ledger(runs.out, folder_option="`--out`")
        self.state = read_state(runs.out) or {"schema": SCHEMA, "errors": {}, "checks": {}}
        self._locked = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in the folder; raise RunFolderError if one does."""
        with self.ledger.locked():
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def begin(self, content: Mapping[str, Any], command: Sequence[str]) -> None:
        """Record the study, and at the first run its plan.

        Raises RunFolderError when the folder holds other things.
        """
        if self.out.exists() and "study" not in self.state and any(self.out.glob("[!.]*")):
            raise RunFolderError(f"{self.out} is not a study's folder. Choose another `--out`.")
        text = plan_text(self.runs.study)
        if "plan" not in self.state:
            self.state["plan"] = None if text is None else recorded_plan(text)
        self.state |= {"study": content, "command": list(command)}
        self.save()

    def save(self) -> None:
        """Write `study.json`."""
        atomic_write_json(self.out / STATE_NAME, redact_secrets(self.state))

    def statuses(self, tasks: Sequence[Task]) -> list[TaskStatus]:
        """Return how tasks stand, in their order, each after those that it reads.

        Writes only while the folder is locked: it may be looked at while a study runs in it.
        """
        statuses: dict[str, TaskStatus] = {}
        for task in tasks:
            statuses[task.step] = self._status(task, statuses)
        return list(statuses.values())

    def _status(self, task: Task, before: Mapping[str, TaskStatus]) -> TaskStatus:
        due = [s for s in task.after if s in before and before[s].state != "done"]
        reasons = self.ledger.reasons(task.step)
        if reasons is not None and not task.output.exists():
            if self._locked:
                self.ledger.remove(task.step)
            reasons = None
        if reasons is None and not due and self._finished_before(task):
            if not self._locked:
                return TaskStatus(task, "done")
            self._record(task, {})
            reasons = []
        if reasons is None:
            return self._not_done(task, due)
        if due:
            return TaskStatus(task, "stale", f"{', '.join(due)} will be done anew")
        try:
            reasons = self.ledger.reasons(task.step, task.inputs(), task.after) or []
        except ConfigError as error:
            reasons = [str(error.problems[0])]
        return TaskStatus(task, "stale" if reasons else "done", "; ".join(reasons))

    def _not_done(self, task: Task, due: Sequence[str]) -> TaskStatus:
        if due and task.kind == "run" and (task.output / RECORD_NAME).exists():
            # It would go on from a checkpoint that began with other weights.
            return TaskStatus(task, "stale", f"it began before {', '.join(due)} is done anew")
        if due:
            return TaskStatus(task, "waiting", f"for {', '.join(due)}")
        error = self.state["errors"].get(task.step)
        return TaskStatus(task, "failed", error) if error else TaskStatus(task, "to do")

    def _finished_before(self, task: Task) -> bool:
        """Return whether a run ended well after the study that started it was killed."""
        file = task.output.with_name(f"{task.output.name}.yaml")
        if task.kind != "run" or not (task.output / RECORD_NAME).exists() or not file.exists():
            return False
        same = compared(RunFile.read(file).values) == task.inputs()["run"]
        return same and str(record_of(task.output)["status"]) == "finished"

    def ended(self, task: Task, end: JobEnd) -> str:
        """Record how a task ended; return `finished` or how far it got."""
        self.state["errors"].pop(task.step, None)
        seconds = self.state.setdefault("seconds", {})
        seconds[task.step] = seconds.get(task.step, 0.0) + end.seconds
        state = self._outcome(task, end)
        if state == "finished":
            self._record(task, {"seconds": seconds[task.step]})
        elif state == "failed":
            what = f"{task.output.name} was not written" if end.status == 0 else end.error
            self.state["errors"][task.step] = what
        self.save()
        return state

    def failed(self, task: Task, why: str) -> None:
        """Record why a task could not begin."""
        self.state["errors"][task.step] = why
        self.save()

    def _outcome(self, task: Task, end: JobEnd) -> str:
        if task.kind == "run":
            there = (task.output / RECORD_NAME).exists()
            status = str(record_of(task.output)["status"]) if there else "not run"
            if status == "finished" or (end.stopped and there):
                return status
        elif end.status == 0 and task.output.exists():
            return "finished"
        return "stopped" if end.stopped else "failed"

    def _record(self, task: Task, notes: Mapping[str, Any]) -> None:
        with self.ledger.recording(task.step, task.inputs(), after=task.after) as recording:
            if task.kind == "run":
                # Made anew, it is another model, and what was measured of the old one is stale.
                recording.result["run_id"] = record_of(task.output).get("run_id")
            recording.notes |= notes

    def discard(self, task: Task) -> None:
        """Delete what a stale task wrote, so that it can be done anew."""
        self.ledger.remove(task.step)
        if task.output.is_dir():
            shutil.rmtree(task.output)
        else:
            task.output.unlink(missing_ok=True)


def read_state(out: Path) -> dict[str, Any] | None:
    """Return `study.json` of a folder; None where there is none. Raises RunFolderError."""
    path = out / STATE_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this package reads {SCHEMA}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error!r}). Restore it, or choose another `--out`."
        ) from error
    return content


def plan_text(study: Study) -> str | None:
    """Return the plan's text, or None if the study has none. Raises RunFolderError."""
    if study.file.plan is None:
        return None
    path = study.source.parent / study.file.plan
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"{path}: the plan cannot be read ({error.strerror}). Write it before the first run, "
            "or leave `plan` out of the study file."
        ) from error


def recorded_plan(text: str) -> dict[str, str]:
    """Return what is recorded of a plan at the first run."""
    return {"sha256": sha256(text), "recorded": now(), "text": text}


def sha256(text: str) -> str:
    """Return the sha256 of a text as UTF-8."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def plan_changes(recorded: Mapping[str, str] | None, text: str | None) -> list[str] | None:
    """Return the lines in which a plan differs from the recorded one; None if none is recorded."""
    if recorded is None:
        return None
    lines = difflib.unified_diff(
        recorded["text"].splitlines(), (text or "").splitlines(), lineterm="", n=0
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
