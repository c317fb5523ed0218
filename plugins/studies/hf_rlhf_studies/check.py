"""Check every cell of a study before its first run starts, as that run would check itself.

``python -m hf_rlhf_studies.check REQUEST ANSWER``, two JSON files, is a program of its own so that
the training stack leaves memory when it ends; it is started as the runs are, so that it sees their
number of processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, HfRlhfError, Problem, RunFolderError
from hf_rlhf.config import RunFile
from hf_rlhf.errors import problems_of_several
from hf_rlhf.rewards import TOTAL
from hf_rlhf.steps import TaskStatus
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_studies.folder import StudyFolder
from hf_rlhf_studies.runs import CellTask, Runs
from hf_rlhf_studies.study import Cell

_ERROR_LINES = 15


def check(folder: StudyFolder, statuses: Sequence[TaskStatus]) -> None:
    """Check the runs that are not done.

    Raises ConfigError with all that is wrong with any of them, and RunFolderError when finished
    runs of a cell were measured on other held-out rows.
    """
    due = {status.task.step for status in statuses if status.state != "done"}
    runs = folder.runs
    every = (s.task for s in statuses if isinstance(s.task, CellTask))
    tasks = [task for task in every if task.trains and task.step in due]
    chosen: dict[tuple[str, str], Cell] = {}
    for task in tasks:
        # What is still to be prepared or trained cannot be read yet: such a run checks itself.
        if not due.intersection(runs.read_by_settings(task)):
            chosen.setdefault((task.cell.block, task.cell.condition), task.cell)
    if not chosen:
        return
    print(f"checking {len(chosen)} cells", flush=True)
    files = [runs.run_file(cell, skip_missing=True) for cell in chosen.values()]
    plans = dict(zip(chosen, _plans(runs, files), strict=True))
    wrong = {
        "/".join(filter(None, key)): [Problem(*problem) for problem in plan["problems"]]
        for key, plan in plans.items()
    }
    if problems := problems_of_several(wrong) or list(_metric_problems(runs, plans)):
        raise ConfigError(problems)
    for key, cell in chosen.items():
        _check_rows(folder, cell, plans[key]["rows"])


def _plans(runs: Runs, files: Sequence[RunFile]) -> list[dict[str, Any]]:
    """Return the plans of run files, made by a process that is started as the runs are."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        contents = [
            (f.name, f.values, str(f.folder), list(f.lines.items()), list(f.overrides.items()))
            for f in files
        ]
        held_out = runs.study.file.measure is None
        atomic_write_json(request, {"held_out": held_out, "files": contents})
        launch = [word.replace("{job}", "0") for word in runs.launch]
        done = subprocess.run(
            [*launch, "-m", "hf_rlhf_studies.check", str(request), str(answer)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not answer.exists():
            end = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
            raise HfRlhfError(f"The cells could not be checked:\n{end}")
        plans: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
        return plans


def _metric_problems(
    runs: Runs, plans: Mapping[tuple[str, str], Mapping[str, Any]]
) -> Iterator[Problem]:
    """Yield the metrics that no cell will measure, where all cells are known to the plans."""
    study = runs.study.file
    complete = {(cell.block, cell.condition) for cell in runs.study.cells()} == set(plans)
    by_plan = [plan["metrics"] for plan in plans.values()]
    if study.measure is not None or not complete or None in by_plan:
        return
    measured = dict.fromkeys(name for names in by_plan for name in names)
    wanted = [*study.metrics, *(question.metric for question in study.questions)]
    wanted += [name for c in study.controls for name in (c.rises.removeprefix("-"), c.falls)]
    for name in dict.fromkeys(name for name in wanted if name not in measured):
        yield Problem("metric", f"`{name}` is not measured.", f"Measured: {', '.join(measured)}.")


def _check_rows(folder: StudyFolder, cell: Cell, rows: str | None) -> None:
    if folder.runs.study.file.held_out_rows == "by_seed":
        return
    key = "/".join(filter(None, (cell.block, cell.condition)))
    finished = any(
        step.rpartition("/seed-")[0] == key and (folder.out / step).exists()
        for step in folder.ledger.entries()
    )
    if finished and folder.checks.get(key) not in (None, rows):
        raise RunFolderError(
            f"{folder.runs.study.title(cell)}: the held-out rows are not those that its finished "
            "runs were measured on. Put the data back as it was, or choose another `--out`."
        )
    folder.checks[key] = rows


def main(request: str, answer: str) -> int:
    """Write the plan of each run file, or every problem that it has."""
    content, plans = json.loads(Path(request).read_text(encoding="utf-8")), []
    for name, values, folder, *places in content["files"]:
        # The line of each key, and the option that set it.
        lines, options = ({tuple(key): value for key, value in each} for each in places)
        file = RunFile(name, values, lines, options, folder=Path(folder))
        plans.append(plan_of(file, content["held_out"]))
    if os.environ.get("RANK", "0") == "0":
        atomic_write_json(answer, plans)
    return 0


def plan_of(file: RunFile, held_out: bool) -> dict[str, Any]:
    """Return the `problems` of a run file, the digest of its held-out `rows`, and its `metrics`.

    A problem is its location, the text, and the cure. `metrics` is null where the trainer does not
    list its own. With `held_out` the run has to measure something.
    """
    from hf_rlhf.data import rows_digest
    from hf_rlhf.runs import resolve_run

    try:
        run = resolve_run(file)
    except ConfigError as error:
        return {"problems": [[p.where, p.what, p.fix] for p in error.problems]}
    except HfRlhfError as error:
        return {"problems": [[file.name, str(error), ""]]}
    evaluation = run.spec.evaluation
    if held_out and evaluation is None:
        fix = "Add an `evaluation` section; it may be as short as `evaluation: {rows: 100}`."
        return {"problems": [["evaluation", "is missing: a study compares what it measures.", fix]]}
    rows = rows_digest(run.dataset[evaluation.split]) if evaluation else None
    trainer: Any = run.trainer_class
    parts = [*run.reward.rewards, *run.reward.gates] if run.reward else []
    metrics = [TOTAL, *(part.label for part in parts), "completion_tokens", "truncated"]
    metrics += trainer.held_out_metrics
    unlisted = trainer.measures_held_out() and not trainer.held_out_metrics
    return {"problems": [], "rows": rows, "metrics": None if unlisted else metrics}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
