"""Turn the run folders of `run.py` into results.json, RESULTS.md and curves.png, kept here."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from run import COMPLETIONS, CONDITIONS, SEEDS

from hf_rlhf.evaluation.statistics import mean_intervals
from hf_rlhf.storage.files import atomic_write_bytes, atomic_write_text
from hf_rlhf_refiner.hacks import hack_table, summary

HERE = Path(__file__).parent
METRICS = ("hardened", "citation_f1", "card_faithful", "format", "hallucinated_ids", "uncited")
METRICS += ("words", "truncated")
COLOURS = {"hardened": "#0072B2", "card_faithful": "#009E73", "flipped": "#D55E00"}


def by_problem(folder: Path, stage: str, metric: str) -> np.ndarray:
    """Return the mean over completions of each held-out problem, shape (problems,)."""
    rows = json.loads((folder / "evaluation" / f"{stage}.json").read_text())["rows"]
    values = np.array([row[metric] for row in rows], dtype=np.float64)
    return values.reshape(-1, COMPLETIONS).mean(axis=1)


def compare(folders: Sequence[Path], metric: str) -> dict[str, Any]:
    """Return before, after and paired difference with intervals over problems."""
    before = np.mean([by_problem(folder, "before", metric) for folder in folders], axis=0)
    after = np.mean([by_problem(folder, "after", metric) for folder in folders], axis=0)
    pairs = {"before": before, "after": after, "difference": after - before}
    means = mean_intervals({name: values.tolist() for name, values in pairs.items()})
    return {name: mean.as_json() for name, mean in means.items() if mean}


def curve(folder: Path) -> list[tuple[int, float]]:
    """Return (step, mean `hardened` reward of the training completions)."""
    history = json.loads((folder / "run.json").read_text())["training"]["history"]
    key = "rewards/hardened/mean"
    return [(entry["step"], entry[key]) for entry in history if key in entry]


def results(out: Path) -> dict[str, Any]:
    """Collect everything that the tables and the picture show."""
    conditions = {}
    for condition in CONDITIONS:
        folders = [out / f"{condition}-{seed}" for seed in SEEDS]
        records = [json.loads((folder / "run.json").read_text()) for folder in folders]
        conditions[condition] = {
            "pooled": {metric: compare(folders, metric) for metric in METRICS},
            "seeds": {
                str(seed): {metric: compare([folder], metric) for metric in METRICS}
                for seed, folder in zip(SEEDS, folders, strict=True)
            },
            "commits": [record["environment"]["git"] for record in records],
            "training_seconds": [record["training"]["seconds"] for record in records],
            "steps": [record["training"]["steps"] for record in records],
            "curves": {str(s): curve(f) for s, f in zip(SEEDS, folders, strict=True)},
        }
    return {"conditions": conditions, "hacks": summary(hack_table())}


def shown(cell: Mapping[str, float]) -> str:
    """Write a mean with its interval."""
    return f"{cell['mean']:+.3f} ({cell['low']:+.3f} to {cell['high']:+.3f})"


def markdown(content: Mapping[str, Any]) -> str:
    """Return RESULTS.md."""
    lines = ["# Results", "", "By `python experiments/refiner_tiny/run.py --out FOLDER`; plan:"]
    lines += [
        "[PLAN.md](PLAN.md). Paired differences with 95% intervals over 200 held-out problems."
    ]
    for condition, entry in content["conditions"].items():
        seconds = ", ".join(f"{value:.0f}" for value in entry["training_seconds"])
        lines += ["", f"## Trained on: {condition}", ""]
        lines += [f"{entry['steps'][0]} steps each; {seconds} seconds of training.", ""]
        heads = [f"seed {seed}" for seed in entry["seeds"]]
        lines += ["| metric | before | after | difference, all seeds | " + " | ".join(heads) + " |"]
        lines += ["|---|--:|--:|--:|" + "--:|" * len(heads)]
        for metric in METRICS:
            pooled = entry["pooled"][metric]
            cells = [shown(pooled["difference"])]
            cells += [shown(seed[metric]["difference"]) for seed in entry["seeds"].values()]
            means = [f"{pooled[stage]['mean']:.3f}" for stage in ("before", "after")]
            lines += [f"| {metric} | " + " | ".join([*means, *cells]) + " |"]
    lines += ["", "![reward over steps](curves.png)", "", "## What each preset pays for hacks", ""]
    lines += ["`hardened` pays 0 to 1, `card_faithful` 0 to 12. For `honest`, the least; for the"]
    lines += ["hacks, the most that any spelling earns.", ""]
    lines += ["| case | class | texts | hardened | card_faithful |", "|---|---|--:|--:|--:|"]
    for case, hack, texts, *paid in content["hacks"]:
        amounts = " | ".join("none" if score is None else f"{score:.2f}" for score in paid)
        lines += [f"| {case} | {hack} | {texts} | {amounts} |"]
    return "\n".join(lines) + "\n"


def picture(content: Mapping[str, Any], path: Path) -> None:
    """Draw the `hardened` reward of the training completions in every run."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.8), dpi=160, layout="constrained")
    axes = figure.subplots()
    for condition, entry in content["conditions"].items():
        runs = [np.array(points) for points in entry["curves"].values()]
        for points in runs:
            axes.plot(points[:, 0], points[:, 1], color=COLOURS[condition], lw=0.7, alpha=0.45)
        mean = np.mean([points[:, 1] for points in runs], axis=0)
        axes.plot(runs[0][:, 0], mean, color=COLOURS[condition], lw=2, label=condition)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("`hardened` reward, training completions")
    axes.legend(frameon=False, title="trained on (thin: one seed)")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    atomic_write_bytes(path, buffer.getvalue())


def main() -> int:
    """Write the three files."""
    content = results(Path(sys.argv[1]))
    atomic_write_text(HERE / "results.json", json.dumps(content, indent=1) + "\n")
    atomic_write_text(HERE / "RESULTS.md", markdown(content))
    picture(content, HERE / "curves.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
