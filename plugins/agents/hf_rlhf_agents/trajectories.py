"""Training data from agents' runs: those with right answers and calls; why others are not."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.storage import atomic_write_text
from hf_rlhf_agents.desk import schemas
from hf_rlhf_agents.harness.messages import as_dict
from hf_rlhf_agents.results import Row, open_log, row_of
from hf_rlhf_agents.tasks import Task

KEPT, REJECTED = "trajectories.jsonl", "rejected.jsonl"


def write_trajectories(
    logs: Sequence[str | Path], folder: Path, least_process: float
) -> Counter[str]:
    """Write the runs of logs to two files; return the number of runs by reason, `kept` first.

    `trajectories.jsonl` has `messages` and `tools`, which the dataset `sft` reads. A rejected run
    has the `reason` beside them.

    Args:
        logs: logs of inspect_ai.
        folder: for the two files, which are replaced.
        least_process: the lowest process score that is kept.
    """
    counts: Counter[str] = Counter(kept=0)
    lines: dict[str, list[str]] = {KEPT: [], REJECTED: []}
    for sample in (each for path in logs for each in open_log(path).samples or []):
        row = row_of(sample)
        reason = rejection(row, least_process)
        counts[reason.partition(":")[0] or "kept"] += 1
        content = {**_trajectory(sample, row), **({"reason": reason} if reason else {})}
        lines[REJECTED if reason else KEPT].append(json.dumps(content, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in lines.items():
        atomic_write_text(folder / name, "".join(f"{line}\n" for line in found))
    return counts


def rejection(row: Row, least_process: float) -> str:
    """Return why a run is no training data; empty if it is."""
    if row.outcome is None:
        return f"not scored: {row.reason}"
    if row.outcome < 1.0:
        return f"wrong answer: {row.answer or 'none'}"
    if row.process is None or row.process < least_process:
        return f"wrong calls: process {row.process or 0:.2f} is below {least_process:g}"
    return ""


def _trajectory(sample: Any, row: Row) -> dict[str, Any]:
    task = Task.model_validate_json(sample.metadata["task"])
    return {
        "id": row.id,
        "category": row.category,
        "epoch": row.epoch,
        "outcome": row.outcome,
        "process": row.process,
        "messages": [as_dict(message) for message in sample.messages],
        "tools": schemas(task.tools),
    }
