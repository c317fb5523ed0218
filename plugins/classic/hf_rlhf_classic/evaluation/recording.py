"""An evaluation put into the record of each run that it measured, and so onto its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.cards import write_card
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.storage import atomic_write_bytes, claimed, load_record, write_record
from hf_rlhf_classic.evaluation.measure import PICTURE
from hf_rlhf_classic.evaluation.plan import Plan
from hf_rlhf_classic.evaluation.report import notes_of, table_of

_SHOWN = "comparison.png"
_KEPT = ("made", "command", "baseline", "reference", "data", "sampling", "method", "results")


def run_folders(plan: Plan) -> dict[Path, str]:
    """Return the run folders among the models, each with its name in the table."""
    return {one.saved.run_folder: one.name for one in plan.checkpoints if one.saved.run_folder}


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
        with claimed(folder):
            _add(folder, name, evaluation, out)
    return list(run_folders(plan))


def _add(folder: Path, name: str, evaluation: Mapping[str, Any], out: Path) -> None:
    found = load_record(folder)
    headings, rows = table_of(evaluation)
    found["comparison"] = {
        "name": name,
        "table": [dict(zip(headings, row, strict=True)) for row in rows],
        "notes": notes_of(evaluation),
        **{key: evaluation[key] for key in _KEPT},
    }
    (folder / _SHOWN).unlink(missing_ok=True)
    if (out / PICTURE).exists():
        atomic_write_bytes(folder / _SHOWN, (out / PICTURE).read_bytes())
        alt = f"Held-out reward over KL from {evaluation['reference']}, by model"
        found["comparison"]["picture"] = {"file": _SHOWN, "alt": alt}
    write_record(found, folder)
    write_card(found, folder)
