"""An evaluation put into the record of each run that it measured, and so onto its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.cards import record_comparison
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.storage import locked_folder
from hf_rlhf_classic.evaluation.measure import PICTURE
from hf_rlhf_classic.evaluation.plan import Plan
from hf_rlhf_classic.evaluation.report import notes_of, table_of

_RECORDED = ("made", "command", "baseline", "reference", "data", "sampling", "method", "results")


def run_folders(plan: Plan) -> dict[Path, str]:
    """Return the run folders among the models, each with its name in the table."""
    return {
        checkpoint.saved.run_folder: checkpoint.name
        for checkpoint in plan.checkpoints
        if checkpoint.saved.run_folder
    }


def check_recordable(plan: Plan) -> None:
    """Raise ConfigError when there is no run whose record could take the results."""
    if not run_folders(plan):
        what = "none of the models is a run folder, so there is no record to add to."
        fix = "Name run folders, not their merged weights, or leave `--record` out."
        raise ConfigError([Problem("--record", what, fix)])


def record(plan: Plan, evaluation: Mapping[str, Any], out: Path) -> list[Path]:
    """Write the comparison into `run.json` and the card of each run; return their folders.

    An earlier comparison is replaced. Raises RunFolderError for a folder that is in use.
    """
    for folder, name in run_folders(plan).items():
        with locked_folder(folder):
            _add(folder, name, evaluation, out)
    return list(run_folders(plan))


def _add(folder: Path, name: str, evaluation: Mapping[str, Any], out: Path) -> None:
    headings, rows = table_of(evaluation)
    comparison = {
        "name": name,
        "table": [dict(zip(headings, row, strict=True)) for row in rows],
        "notes": notes_of(evaluation),
        **{key: evaluation[key] for key in _RECORDED},
    }
    alt = f"Held-out reward over KL from {evaluation['reference']}, by model"
    picture = (out / PICTURE, alt) if (out / PICTURE).exists() else None
    record_comparison(folder, comparison, picture)
