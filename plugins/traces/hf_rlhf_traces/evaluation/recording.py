"""An evaluation put into the record of each run that it measured, and so onto its card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.cards import write_card
from hf_rlhf.storage import claimed, load_record, write_record
from hf_rlhf_traces.evaluation.metrics import SAID
from hf_rlhf_traces.evaluation.tables import claim_lines, task_table

_KEPT = ("made", "command", "baseline", "data", "sampling", "method", "differences", "claims")


def record_results(results: Mapping[str, Any]) -> None:
    """Write the tables into `run.json` and the card of each run among the models.

    An earlier comparison there is replaced. Raises RunFolderError for one
    that is in use.
    """
    runs = {
        label: Path(model["run_folder"])
        for label, model in results["models"].items()
        if model["run_folder"]
    }
    for label, folder in runs.items():
        with claimed(folder, "--model"):
            record = load_record(folder)
            record["comparison"] = _comparison(label, results)
            write_record(record, folder)
            write_card(record, folder)


def _comparison(label: str, results: Mapping[str, Any]) -> dict[str, Any]:
    table = []
    for task in results["data"]:
        headings, rows = task_table(results, task)
        table += [{"task": SAID[task], **dict(zip(headings, row, strict=True))} for row in rows]
    notes = [*claim_lines(results), results["method"], *results["notes"]]
    return {
        "name": label,
        "table": table,
        "notes": [*notes, "The column (data) has the replies of the training data."],
        **{key: results[key] for key in _KEPT},
    }
