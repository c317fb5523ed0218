"""Write the results of PLAN.md: `python experiments/traces_strategies/report.py FOLDER`.

Reads what `run.py` left in FOLDER and writes results.json, RESULTS.md and strategies.png beside
this file. Nothing is measured again: the scores of each reply are those of `hf-rlhf traces eval`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grid import CONDITIONS, SEEDS, tokens_of

from hf_rlhf.evaluation import Interval, mean_intervals
from hf_rlhf.storage.files import atomic_write_json, atomic_write_text
from hf_rlhf.storage.record import load_record

HERE = Path(__file__).parent
MODELS = ("base", *CONDITIONS)
TASKS = ("prefix", "only")
MEASURES = {
    "prefix": ("next_step_right", "summary_valid", "summary_rouge_l", "quotes_verbatim",
               "quotes_recall", "format_valid", "kind_right", "answer_exact", "query_f1"),
    "only": ("next_step_right", "format_valid", "kind_right", "answer_exact", "query_f1"),
}  # fmt: skip
WITHIN = 0.02
"""How far from the budget of tokens a condition is valid."""
Scores = dict[str, dict[str, Any]]
"""Sample -> its question and its metrics."""


def scores(store: Path, results: Mapping[str, Any], label: str, task: str) -> Scores:
    """Return the metrics of every reply of a model, with `next_step_right` among them."""
    folder = store / "eval" / results["models"][label]["tasks"][task]["folder"]
    lines = (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()
    found = {}
    for row in map(json.loads, lines):
        metrics = row["metrics"]
        exact = metrics["answer_exact"]
        said = exact if exact is not None else float(metrics["query_f1"] == 1.0)
        right = float(bool(said) and metrics["kind_right"] == 1.0)
        found[row["id"]] = {"question": row["question_key"], **metrics, "next_step_right": right}
    return found


def mean(rows: Sequence[tuple[str, Mapping[str, Any]]], names: Sequence[str]) -> dict[str, Any]:
    """Return estimates by metric of rows, each with the cluster that it belongs to."""
    table = {name: [row[name] for _, row in rows] for name in names}
    return _plain(mean_intervals(table, [cluster for cluster, _ in rows]))


def difference(one: Mapping[int, Scores], other: Mapping[int, Scores], name: str) -> dict[str, Any]:
    """Return one minus other, paired by sample: of each seed, and pooled over those both have."""
    seeds = sorted(one.keys() & other.keys())
    pairs = [
        (seed, f"{seed}/{row['question']}", row[name] - other[seed][key][name])
        for seed in seeds
        for key, row in one[seed].items()
        if None not in (row[name], other[seed][key][name])
    ]
    by_seed = {seed: fmean(value for at, _, value in pairs if at == seed) for seed in seeds}
    found = mean_intervals(
        {name: [value for _, _, value in pairs]}, [cluster for _, cluster, _ in pairs]
    )
    pooled = _plain(found)[name]
    signs = {(value > 0) - (value < 0) for value in by_seed.values()}
    beyond = pooled["low"] > 0 or pooled["high"] < 0
    verdict = "not shown"
    if len(seeds) == len(SEEDS) and len(signs) == 1 and beyond:
        verdict = "better" if pooled["mean"] > 0 else "worse"
        if abs(pooled["mean"]) < max(_range(one, name), _range(other, name)):
            verdict = "noise"
    return {"by_seed": by_seed, "pooled": pooled, "verdict": verdict}


def _range(by_seed: Mapping[int, Scores], name: str) -> float:
    means = [
        fmean(row[name] for row in rows.values() if row[name] is not None)
        for rows in by_seed.values()
    ]
    return max(means) - min(means)


def _plain(found: Mapping[str, Interval | None]) -> dict[str, Any]:
    return {name: one.as_json() if one else None for name, one in found.items()}


def collected(out: Path) -> tuple[dict[tuple[str, str], dict[int, Scores]], dict[str, Any]]:
    """Return (model, task) -> seed -> scores, and what training took."""
    found: dict[tuple[str, str], dict[int, Scores]] = {}
    training: dict[str, Any] = {}
    for seed in SEEDS:
        store = out / f"seed{seed}" / "store"
        file = store / "eval" / "results.json"
        if not file.exists():
            continue
        results = json.loads(file.read_text(encoding="utf-8"))
        for label in results["models"]:
            for task in TASKS:
                found.setdefault((label, task), {})[seed] = scores(store, results, label, task)
            if label != "base":
                training[f"{label}/{seed}"] = _training(out / f"seed{seed}" / "runs" / label)
    return found, training


def _training(run: Path) -> dict[str, Any]:
    record = load_record(run)
    return {
        "tokens": tokens_of(record),
        "steps": record.training.steps,
        "seconds": record.training.seconds,
        "epochs": record.training.epochs,
    }


def main(arguments: Sequence[str]) -> int:
    """Write the three files."""
    found, training = collected(Path(arguments[0]))
    results: dict[str, Any] = {"training": training, "means": {}, "differences": {}}
    for (label, task), by_seed in found.items():
        names = MEASURES[task]
        pooled = [
            (f"{seed}/{row['question']}", row)
            for seed, rows in by_seed.items()
            for row in rows.values()
        ]
        results["means"][f"{label}/{task}"] = {
            "pooled": mean(pooled, names),
            "by_seed": {
                seed: mean([(row["question"], row) for row in rows.values()], names)
                for seed, rows in by_seed.items()
            },
        }
    for one, other in (("prefix", "progressive"), ("only", "progressive"),
                       ("progressive", "only"), ("progressive", "prefix")):  # fmt: skip
        for task in TASKS:
            for name in ("next_step_right", *(("summary_rouge_l",) * (task == "prefix"))):
                key = f"{one} - {other}: {task} {name}"
                results["differences"][key] = difference(found[one, task], found[other, task], name)
    atomic_write_json(HERE / "results.json", results)
    atomic_write_text(HERE / "RESULTS.md", as_markdown(results))
    picture(results, HERE / "strategies.png")
    print((HERE / "RESULTS.md").read_text(encoding="utf-8"))
    return 0


def as_markdown(results: Mapping[str, Any]) -> str:
    """Return the tables."""
    lines = ["# Results", "", "Written by `report.py`; means with 95% intervals over questions, "
             "all seeds together, and in brackets the means of the seeds.", ""]  # fmt: skip
    for task in TASKS:
        names = MEASURES[task]
        lines += [f"## Task `{task}`", "", "| model | " + " | ".join(names) + " |"]
        lines.append("|---|" + "---|" * len(names))
        for label in MODELS:
            if (told := results["means"].get(f"{label}/{task}")) is not None:
                cells = [_cell(told, name) for name in names]
                lines.append(f"| `{label}` | " + " | ".join(cells) + " |")
        lines.append("")
    lines += [
        "## Differences",
        "",
        "| difference | by seed | pooled | verdict |",
        "|---|---|---|---|",
    ]
    for key, one in results["differences"].items():
        seeds = ", ".join(f"{value:+.3f}" for value in one["by_seed"].values())
        lines.append(f"| {key} | {seeds} | {_told(one['pooled'], '+')} | {one['verdict']} |")
    lines += [
        "",
        "## Training",
        "",
        "| run | tokens | of the budget | steps | epochs | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for key, one in results["training"].items():
        budget = results["training"][f"progressive/{key.rpartition('/')[2]}"]["tokens"]
        share = one["tokens"] / budget - 1
        valid = "" if abs(share) <= WITHIN else ", **not valid**"
        lines.append(f"| {key} | {one['tokens']:,} | {share:+.1%}{valid} | {one['steps']} | "
                     f"{one['epochs']:.1f} | {one['seconds']:.0f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


def _cell(told: Mapping[str, Any], name: str) -> str:
    seeds = [one[name] for one in told["by_seed"].values()]
    means = ", ".join("-" if one is None else f"{one['mean']:.2f}" for one in seeds)
    return f"{_told(told['pooled'][name])} ({means})"


def _told(one: Mapping[str, Any] | None, sign: str = "") -> str:
    if one is None:
        return "-"
    if one["low"] is None:
        return f"{one['mean']:{sign}.3f}"
    return f"{one['mean']:{sign}.3f} [{one['low']:{sign}.3f}, {one['high']:{sign}.3f}]"


def picture(results: Mapping[str, Any], path: Path) -> None:
    """Draw the main measures of every model: the pooled mean, its interval, and the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = (("prefix", "next_step_right", "full context: next step right"),
             ("only", "next_step_right", "given summary: next step right"),
             ("prefix", "summary_rouge_l", "full context: ROUGE-L of the summary"))  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True)
    for axis, (task, name, title) in zip(axes, shown, strict=True):
        labels = [one for one in MODELS if f"{one}/{task}" in results["means"]]
        for place, label in enumerate(labels):
            told = results["means"][f"{label}/{task}"]
            pooled = told["pooled"][name]
            if pooled is None:
                continue
            low, high = pooled["low"] or pooled["mean"], pooled["high"] or pooled["mean"]
            axis.bar(place, pooled["mean"], color="#9db8d2", width=0.65)
            axis.vlines(place, low, high, color="#1f3a5f", linewidth=2)
            for one in told["by_seed"].values():
                if one[name] is not None:
                    axis.plot(place + 0.2, one[name]["mean"], "o", color="#b3541e", markersize=3)
        axis.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.set_ylim(0, 1.02)
        axis.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.01, "bars: all seeds; lines: 95% intervals over questions; dots: seeds",
                fontsize=7)  # fmt: skip
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
