"""Resolves every cell of a sweep before the first run starts: a program that `hf-rlhf sweep` runs.

``python -m hf_rlhf.sweep_check REQUEST ANSWER``, two JSON files. It is a program of its own so
that the training stack leaves memory when it ends, and is started as the runs are, so that it
sees their number of processes.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from hf_rlhf.config.run_file import RunFile
from hf_rlhf.config.run_files import choose_run_file
from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf.runs.estimate import disk_need, planned_steps
from hf_rlhf.runs.resolve_phases import prepare_all
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.files import atomic_write_json


def main(request: str, answer: str) -> int:
    """Answer for each cell with its plan, or with every problem that it has."""
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    file = choose_run_file(asked["plugin"], asked["run"], asked["config"])
    base = file.override(asked["overrides"])
    cells = [checked(base, asked["plugin"], arguments) for arguments in asked["cells"]]
    if os.environ.get("RANK", "0") == "0":
        atomic_write_json(answer, cells)
    return 0


def checked(base: RunFile, plugin: str | None, arguments: list[str]) -> dict[str, Any]:
    """Return `problems`, or `steps`, `bytes`, `own` and, of what is evaluated, `rows`, of one cell.

    A problem is where, what, and how to mend it.

    `rows` tells whether two cells are measured on the same held-out rows: their hash; `own` the
    names of what the trainer measures itself, null where it does not tell.
    """
    try:
        run, phases = prepare_all(base.override(arguments), plugin)
    except ConfigError as error:
        return {"problems": [[one.where, one.what, one.fix] for one in error.problems]}
    except HfRlhfError as error:
        return {"problems": [[base.name, str(error), ""]]}
    if run.spec.evaluation is None:
        fix = "Add an `evaluation` section; it may be as short as `evaluation: {rows: 100}`."
        return {"problems": [["evaluation", "is missing: a sweep compares what it measures.", fix]]}
    runs = list(phases.values()) or [run]
    steps = sum(planned_steps(one) for one in runs)
    try:
        size = sum(disk_need(one, planned_steps(one)).total for one in runs)
    except ValueError:  # no causal language model, whose size is not known beforehand
        size = 0
    own = _own(run.trainer_class)
    return {"problems": [], "steps": steps, "bytes": size, "rows": _rows(run), "own": own}


def _own(trainer: Any) -> list[str] | None:
    if not hasattr(trainer, "held_out"):
        return []
    return list(getattr(trainer, "held_out_metrics", ())) or None


def _rows(run: Run) -> str:
    spec = run.spec.evaluation
    assert spec is not None
    split = run.dataset[spec.split]
    count = len(split) if spec.rows is None else min(spec.rows, len(split))
    digest = hashlib.sha256()
    for row in split.select(range(count)):
        # What is not JSON (a picture, say) shows as its type: its text may hold an address.
        digest.update(json.dumps(row, sort_keys=True, default=_type_name).encode())
    return digest.hexdigest()


def _type_name(value: object) -> str:
    return type(value).__name__


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
