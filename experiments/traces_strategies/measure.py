"""Measure one model on the held-out questions of a seed, in both tasks: see study.yaml."""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hf_rlhf.storage.files import atomic_write_json

TASKS = ("prefix", "only")
OPTIONS = ("--num_samples", "130", "--max_new_tokens", "256", "--batch_size", "32", "--use_cpu")


def samples(store: Path, model: str, label: str) -> dict[str, list[dict[str, Any]]]:
    """Return the replies of a model with their metrics by task, as `hf-rlhf traces eval` writes."""
    words = ["traces", "eval", str(store), "--model", f"{label}={model}", *OPTIONS]
    subprocess.run([sys.executable, "-m", "hf_rlhf.cli", *words], check=True)
    results = json.loads((store / "eval" / "results.json").read_text(encoding="utf-8"))
    samples = {}
    for task in TASKS:
        (folder,) = results["tasks"][task]["results"][label]["folders"]
        lines = (store / "eval" / folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        samples[task] = sorted(map(json.loads, lines), key=lambda row: str(row["id"]))
    return samples


def next_step_right(metrics: dict[str, Any]) -> float:
    """Return 1 if the reply's kind is right, and its query or answer exactly that of the trace."""
    exact = metrics["answer_exact"]
    same = exact if exact is not None else float(metrics["query_f1"] == 1.0)
    return float(bool(same) and metrics["kind_right"] == 1.0)


def main() -> None:
    """Write the file that a study reads: every metric of every sample, clustered by question."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    content: dict[str, Any] = {"rows": {}, "clusters": {}}
    with tempfile.TemporaryDirectory() as folder:
        # A copy: the store's own evaluation belongs to whoever works there.
        store = Path(shutil.copytree(chosen.store, Path(folder, "store")))
        for task, rows in samples(store, chosen.model, chosen.label).items():
            content["clusters"][task] = [row["question_key"] for row in rows]
            for row in rows:
                row["metrics"]["next_step_right"] = next_step_right(row["metrics"])
            for name in rows[0]["metrics"]:
                content["rows"][f"{task}/{name}"] = [row["metrics"][name] for row in rows]
    atomic_write_json(chosen.out, content)


if __name__ == "__main__":
    main()
