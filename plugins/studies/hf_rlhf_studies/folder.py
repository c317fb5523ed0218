"""The folder of a study: which tasks are done, why others failed, the plan as first recorded."""

import difflib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, Problem, RunFolderError
from hf_rlhf.steps import Ledger
from hf_rlhf.storage import RECORD_NAME, atomic_write_json, load_record, now, redact_secrets
from hf_rlhf_studies.criteria import check_criteria
from hf_rlhf_studies.jobs import JobEnd
from hf_rlhf_studies.runs import Runs, Task
from hf_rlhf_studies.study import Study

STATE_NAME = "study.json"
SCHEMA = 1


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task: `done`, `to do`, `waiting`, `failed` or `stale`; and why."""

    task: Task
    state: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.task.step}: {self.state}" + (f": {self.why}" if self.why else "")


class StudyFolder:
    """A study's output folder: `study.json`, `steps.json`, and what its tasks write."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.out = runs.out
        self.ledger = Ledger(runs.out, folder_option="`--out`")
        self.state = read_state(runs.out)

    def begin(self, command: Sequence[str]) -> None:
        """Record the command, and at the first run the plan.

        Raises RunFolderError when the folder holds other things.
        """
        new = not (self.out / STATE_NAME).exists()
        if new and any(self.out.glob("[!.]*")):
            raise RunFolderError(f"{self.out} is not a study's folder. Choose another `--out`.")
        if "plan" not in self.state:
            text = plan_text(self.runs.study)
            digest = text and hashlib.sha256(text.encode()).hexdigest()
            self.state["plan"] = text and {"sha256": digest, "recorded": now(), "text": text}
        self.state["command"] = list(command)
        self.save()

    def save(self) -> None:
        """Write `study.json`."""
        atomic_write_json(self.out / STATE_NAME, redact_secrets(self.state))

    def statuses(self, tasks: Sequence[Task]) -> list[TaskStatus]:
        """Return the state of tasks, in their order, each after those that it reads."""
        statuses: dict[str, TaskStatus] = {}
        for task in tasks:
            statuses[task.step] = self._status(task, statuses)
        return list(statuses.values())

    def _status(self, task: Task, before: Mapping[str, TaskStatus]) -> TaskStatus:
        due = ", ".join(s for s in task.after if s in before and before[s].state != "done")
        if not task.output.exists() or self.ledger.reasons(task.step) is None:
            return self._unfinished(task, due)
        if due:
            return TaskStatus(task, "stale", f"{due} will be done anew")
        try:
            reasons = self.ledger.reasons(task.step, task.inputs(), task.after) or []
        except ConfigError as error:
            reasons = [str(error.problems[0])]
        return TaskStatus(task, "stale" if reasons else "done", "; ".join(reasons))

    def _unfinished(self, task: Task, due: str) -> TaskStatus:
        if due and task.kind == "run" and (task.output / RECORD_NAME).exists():
            # It would go on from a checkpoint that began with other weights.
            return TaskStatus(task, "stale", f"it began before {due} is done anew")
        if due:
            return TaskStatus(task, "waiting", f"for {due}")
        error = self.state["errors"].get(task.step)
        return TaskStatus(task, "failed", error) if error else TaskStatus(task, "to do")

    def ended(self, task: Task, end: JobEnd) -> str:
        """Record how a task ended; return `finished` or how far it got."""
        self.state["errors"].pop(task.step, None)
        seconds = self.state["seconds"].get(task.step, 0.0) + end.seconds
        self.state["seconds"][task.step] = seconds
        state = _outcome(task, end)
        if state == "finished":
            with self.ledger.recording(task.step, task.inputs(), after=task.after) as recording:
                if task.kind == "run":
                    # Another run gives another model, and measurements of the old one are stale.
                    recording.result["run_id"] = record_of(task.output).get("run_id")
                recording.notes["seconds"] = seconds
        elif state == "failed":
            self.failed(task, end.error or f"{task.output.name} was not written")
        self.save()
        return state

    def failed(self, task: Task, why: str) -> None:
        """Record why a task failed."""
        self.state["errors"][task.step] = why
        self.save()

    def discard(self, task: Task) -> None:
        """Delete what a stale task wrote, so that it can be done anew."""
        self.ledger.remove(task.step)
        if task.output.is_dir():
            shutil.rmtree(task.output)
        else:
            task.output.unlink(missing_ok=True)


def _outcome(task: Task, end: JobEnd) -> str:
    if task.kind == "run":
        begun = (task.output / RECORD_NAME).exists()
        status = str(record_of(task.output)["status"]) if begun else "not run"
        if status == "finished" or (end.stopped and begun):
            return status
    elif end.status == 0 and task.output.exists():
        return "finished"
    return "stopped" if end.stopped else "failed"


def record_of(folder: Path) -> dict[str, Any]:
    """Return the record of a run as JSON has it. Raises RunFolderError as `load_record` does."""
    return load_record(folder).to_json()


def read_state(out: Path) -> dict[str, Any]:
    """Return `study.json` of a folder, or an empty state. Raises RunFolderError if damaged."""
    path = out / STATE_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this package reads {SCHEMA}")
    except FileNotFoundError:
        content = {"schema": SCHEMA}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error!r}). Restore it, or choose another `--out`."
        ) from error
    return {"errors": {}, "checks": {}, "seconds": {}, **content}


def plan_text(study: Study, recorded: str = "") -> str | None:
    """Return the plan's text, or None if the study has none.

    Raises ConfigError if it is unreadable, or the study file leaves out a failure criterion of it
    or of the plan as it was recorded.
    """
    if study.file.plan is None:
        if study.file.criteria:
            what = "quotes a plan, which the study file does not name."
            raise ConfigError([Problem(f"{study.source.name} criteria", what, "Set `plan`.")])
        return None
    path = study.source.parent / study.file.plan
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fix = "Write it before the first run, or leave `plan` out of the study file."
        what = f"{path} cannot be read ({error.strerror})."
        raise ConfigError([Problem(f"{study.source.name} plan", what, fix)]) from error
    check_criteria(study, text, recorded)
    return text


def plan_changes(recorded: Mapping[str, str], text: str | None) -> list[str]:
    """Return the lines in which a plan differs from the recorded one."""
    lines = difflib.unified_diff(
        recorded["text"].splitlines(), (text or "").splitlines(), lineterm="", n=0
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
