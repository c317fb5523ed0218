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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_rlhf import ConfigError, HfRlhfError, Problem, RunFolderError
from hf_rlhf.config import RunFile
from hf_rlhf.storage import Space, atomic_write_json, human, taken_bytes
from hf_rlhf_studies.folder import StudyFolder
from hf_rlhf_studies.runs import Runs
from hf_rlhf_studies.study import Cell

_ERROR_LINES = 15


def check(folder: StudyFolder, cells: Sequence[Cell]) -> dict[tuple[str, str], dict[str, Any]]:
    """Check the cells that will be run; return `plan_of` by block and condition.

    Raises ConfigError with all that is wrong with any of them, RunFolderError when the disk lacks
    room, or when held-out rows are not those that finished runs of a cell were measured on.
    """
    first = {(cell.block, cell.condition): cell for cell in reversed(cells)}
    done = folder.ledger.entries()
    # Data that is still to be prepared cannot be read yet: such a run checks itself.
    chosen = [
        task.cell
        for task in folder.runs.tasks(list(first.values()))
        if task.kind == "run"
        and task.cell is not None
        and task.cell in first.values()
        and all(step in done for step in task.after if step.startswith("prepared/"))
    ]
    if not chosen:
        return {}
    print(f"checking {len(chosen)} cells", flush=True)
    plans = _asked(folder.runs, [_run_file(folder.runs, cell) for cell in chosen])
    titles = [_titled(folder.runs, cell) for cell in chosen]
    if problems := _by_cell(titles, [plan["problems"] for plan in plans]):
        raise ConfigError(problems)
    by_condition = {
        (cell.block, cell.condition): plan for cell, plan in zip(chosen, plans, strict=True)
    }
    for (block, name), plan in by_condition.items():
        _check_rows(folder, Cell(block, name, 0), plan)
    _check_space(folder, cells, by_condition)
    return by_condition


def _run_file(runs: Runs, cell: Cell) -> RunFile:
    """Return a cell's run file; in place of weights that are still to be made, the base's."""
    return replace(runs, absent_starts=False).run_file(cell)


def _titled(runs: Runs, cell: Cell) -> str:
    label = runs.study.label(cell.condition)
    return f"{cell.block}, {label}" if cell.block else label


def _asked(runs: Runs, files: Sequence[RunFile]) -> list[dict[str, Any]]:
    """Return the plans of run files, made by a process that is started as the runs are."""
    held_out = runs.study.file.measure is None
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        content = {"held_out": held_out, "files": [as_json(file) for file in files]}
        request.write_text(json.dumps(content), encoding="utf-8")
        launch = [word.replace("{job}", "0") for word in runs.launch]
        done = subprocess.run(
            [*launch, "-m", "hf_rlhf_studies.check", str(request), str(answer)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not answer.exists():
            words = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
            raise HfRlhfError(f"The cells could not be checked:\n{words}")
        plans: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
        return plans


def as_json(file: RunFile) -> dict[str, Any]:
    """Return a run file with the place of each key."""
    return {
        "name": file.name,
        "values": dict(file.values),
        "lines": [[list(path), line] for path, line in file.lines.items()],
        "overrides": [[list(path), option] for path, option in file.overrides.items()],
    }


def _from_json(content: Mapping[str, Any]) -> RunFile:
    return RunFile(
        content["name"],
        content["values"],
        {tuple(path): line for path, line in content["lines"]},
        {tuple(path): option for path, option in content["overrides"]},
    )


def _by_cell(
    titles: Sequence[str], problems_of: Sequence[Sequence[Sequence[str]]]
) -> list[Problem]:
    """Return each problem once, with the cells that have it unless all do."""
    cells_with: dict[tuple[str, ...], list[str]] = {}
    for title, problems in zip(titles, problems_of, strict=True):
        for problem in problems:
            cells_with.setdefault(tuple(problem), []).append(title)
    return [
        Problem(where, what, fix)
        if len(cells) == len(titles)
        else Problem(f"{'; '.join(cells)}: {where}", what, fix)
        for (where, what, fix), cells in cells_with.items()
    ]


def _check_rows(folder: StudyFolder, of: Cell, plan: Mapping[str, Any]) -> None:
    key = "/".join(filter(None, (of.block, of.condition)))
    known = folder.state["checks"].get(key)
    finished = any(name.rpartition("/seed-")[0] == key for name in folder.ledger.entries())
    if known not in (None, plan["rows"]) and finished:
        raise RunFolderError(
            f"{_titled(folder.runs, of)}: the held-out rows are not those that its finished runs "
            "were measured on. Put the data back as it was, or choose another `--out`."
        )
    folder.state["checks"][key] = plan["rows"]


def _check_space(
    folder: StudyFolder, cells: Sequence[Cell], plans: Mapping[tuple[str, str], Mapping[str, Any]]
) -> None:
    sizes = [
        max(plans[cell.block, cell.condition]["bytes"] - taken_bytes(folder.runs.folder(cell)), 0)
        for cell in cells
        if (cell.block, cell.condition) in plans
    ]
    need, free = sum(sizes), Space.of(folder.out).bytes
    if need > free:
        raise RunFolderError(
            f"{len(cells)} runs need about {human(need)}, and {folder.out} has {human(free)} "
            "free. Free space, choose another `--out`, or keep fewer checkpoints "
            "(`save_total_limit: 1`)."
        )


def main(request: str, answer: str) -> int:
    """Answer for each run file with its plan, or with every problem that it has."""
    content = json.loads(Path(request).read_text(encoding="utf-8"))
    plans = [plan_of(_from_json(file), content["held_out"]) for file in content["files"]]
    if os.environ.get("RANK", "0") == "0":
        atomic_write_json(answer, plans)
    return 0


def plan_of(file: RunFile, held_out: bool) -> dict[str, Any]:
    """Return `problems`, or `steps`, `bytes`, `rows` and `own` of a run file.

    A problem is where, what, and the cure. `rows` tells whether two cells are measured on the same
    held-out rows; `own` has the names of what the trainer measures itself, null where it does not
    tell. With `held_out` the run has to measure something.
    """
    from hf_rlhf.data import rows_digest
    from hf_rlhf.runs import disk_need, planned_steps, resolve_all

    try:
        run, phases = resolve_all(file, None)
    except ConfigError as error:
        return {
            "problems": [[problem.where, problem.what, problem.fix] for problem in error.problems]
        }
    except HfRlhfError as error:
        return {"problems": [[file.name, str(error), ""]]}
    evaluation = run.spec.evaluation
    if held_out and evaluation is None:
        fix = "Add an `evaluation` section; it may be as short as `evaluation: {rows: 100}`."
        return {"problems": [["evaluation", "is missing: a study compares what it measures.", fix]]}
    runs = list(phases.values()) or [run]
    steps = sum(planned_steps(run) for run in runs)
    try:
        size = sum(disk_need(run, planned_steps(run)).total for run in runs)
    except ValueError:  # no causal language model, whose size is not known beforehand
        size = 0
    rows = rows_digest(run.dataset[evaluation.split]) if evaluation else None
    own = _own_metrics(run.trainer_class)
    return {"problems": [], "steps": steps, "bytes": size, "rows": rows, "own": own}


def _own_metrics(trainer: Any) -> list[str] | None:
    if not trainer.measures_held_out():
        return []
    return list(trainer.held_out_metrics) or None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
