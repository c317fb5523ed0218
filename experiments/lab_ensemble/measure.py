"""A run's own held-out scores, with KL and disagreement of its last steps: `measure.py RUN OUT`."""

import json
import sys
from pathlib import Path

from hf_rlhf.evaluation import Evaluation
from hf_rlhf.storage import atomic_write_json

KEPT = ("gold", "mean_score", "trained", "verbose", "completion_tokens")
LAST = ("kl_per_completion", "reward_ensemble/disagreement")


def main(run: Path, out: Path) -> None:
    """Write what the study reads."""
    columns = {}
    for stage in ("before", "after"):
        evaluation = Evaluation.load(run / "evaluation" / f"{stage}.json")
        columns[stage] = {name: evaluation.column(name) for name in KEPT}
    history = json.loads((run / "run.json").read_text())["training"]["history"]
    values = {name: [entry[name] for entry in history if name in entry] for name in LAST}
    gold = [entry["rewards/gold/mean"] for entry in history if "rewards/gold/mean" in entry]
    content = {
        "rows": columns["after"],
        "before": columns["before"],
        "values": {
            **{name: each[-1] for name, each in values.items() if each},
            "gold_peak_in_training": max(gold),
            "gold_last_in_training": gold[-1],
        },
    }
    atomic_write_json(out, content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
