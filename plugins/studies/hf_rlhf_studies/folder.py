"""The folder of a study: its tasks, and the plan as first recorded."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, Problem, RunFolderError
from hf_rlhf.steps import Chain, Ledger
from hf_rlhf.storage import atomic_write_json, load_record, now, redact_secrets
from hf_rlhf_studies.criteria import check_criteria
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Cell, Study

STATE_NAME = "study.json"
SCHEMA = 1


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

    def chain(self, cells: Sequence[Cell] = ()) -> Chain:
        """Return the tasks of some cells, or of all, with their ledger."""
        return Chain(self.ledger, self.runs.tasks(cells))


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
    return {"checks": {}, **content}


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
    """Return the lines in which a plan differs from the recorded text."""
    lines = difflib.unified_diff(
        recorded["text"].splitlines(), (text or "").splitlines(), lineterm="", n=0
    )
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]
