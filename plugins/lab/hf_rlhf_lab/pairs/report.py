"""Report the models' accuracy, the selected pairs, and the known errors removed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from hf_rlhf.config import dump_yaml
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, markdown_table, number, print_table, share
from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_lab.pairs.choice import Array, Mask, PairSettings
from hf_rlhf_lab.pairs.folder import PairFolder, lines
from hf_rlhf_lab.validation.agreement import against_chance

FEW = 30
"""Number of pairs in a fold below which the report warns."""
_NOISE = (
    "The models' order of pairs is {}, so the choice may be noise: bring more pairs, or train "
    "longer."
)
Table = tuple[str, list[str], list[list[str]]]
"""Title, headings, rows."""


def write_report(pairs: PairFolder, settings: PairSettings) -> dict[str, Any]:
    """Write rows, rejected rows, and report; print the tables; return the report."""
    from rich.console import Console

    rows, margins = pairs.rows("train"), pairs.margins(settings.cycles)
    strata, folds = settings.strata_of(rows), np.array(pairs.folds)
    chosen = settings.confident(margins, strata)
    reasons = ["no score" if np.isnan(margin) else "not chosen" for margin in margins]
    known = settings.known_wrong
    wrong = None if known is None else np.array([row[known] for row in rows])
    summarize = partial(_summary, wrong, [str(row["prompt"]) for row in rows])
    sets = {
        "all": np.ones(len(rows), bool),
        "kept": chosen,
        "random": settings.random(margins, strata),
        "left out": ~chosen,
    }
    by_cycle = [pairs.margins(cycle) for cycle in range(1, settings.cycles + 1)]
    section = {"name": "confident_pairs", "folder": str(pairs.path), **settings.choice}
    report: dict[str, Any] = {
        "verb": "confident_pairs",
        "prompts": len(rows),
        "rows": int(chosen.sum()),
        "rejected": dict(Counter(np.array(reasons)[~chosen].tolist())),
        "usage": {},
        "test_rows": len(pairs.rows("test")),
        "folds": [
            [summarize(folds == fold, scored) for fold in range(settings.folds)]
            for scored in by_cycle
        ],
        "sets": {name: summarize(mask, margins) for name, mask in sets.items()},
        "dataset": {key: value for key, value in section.items() if value is not None},
    }
    tables = list(_tables(report, settings))
    agreement = report["sets"]["all"]["agrees_with_label"]
    use = _warning(agreement)
    use += f"Train on the pairs that are kept:\n\n{_indented(report['dataset'])}"
    page = [f"## {title}\n\n{markdown_table(heads, body, 1)}" for title, heads, body in tables]
    pages = ["# Pairs that reward models are sure of", *page, use]
    scored = [
        {**row, "fold": fold, "score_margin": None if np.isnan(margin) else float(margin)}
        for row, fold, margin in zip(rows, pairs.folds, margins, strict=True)
    ]
    rejected = [{**scored[at], "reason": reasons[at]} for at in np.flatnonzero(~chosen)]
    atomic_write_text(pairs.path / "rows.jsonl", lines(compress(scored, chosen)))
    atomic_write_text(pairs.path / "rejected.jsonl", lines(rejected))
    atomic_write_text(pairs.path / "report.md", "\n\n".join(pages) + "\n")
    atomic_write_json(pairs.path / "report.json", report)
    for title, heads, body in tables:
        print_table(Console(), heads, body, title)
    print(use)
    return report


def _warning(agreement: Mapping[str, Any] | None) -> str:
    """Return a warning about the pairs; empty if the models beat chance."""
    if agreement and agreement["low"] > 0.5:
        return ""
    shown = against_chance(agreement["high"]) if agreement else "not measured"
    return f"{_NOISE.format(shown)}\n\n"


def _indented(section: dict[str, Any]) -> str:
    return "".join(f"    {line}\n" for line in dump_yaml({"dataset": section}).splitlines())


def _summary(
    wrong: Mask | None, prompts: Sequence[str], mask: Mask, margins: Array
) -> dict[str, Any]:
    """Return measures of the pairs of a mask; means have intervals over prompts."""

    def mean(values: Array | Mask, among: Mask) -> dict[str, Any] | None:
        some = [float(value) for value in values[among]]
        interval = Interval.of_mean(some, list(compress(prompts, among)))
        return None if interval is None else interval.as_json()

    scored = mask & ~np.isnan(margins)
    summary: dict[str, Any] = {
        "pairs": int(mask.sum()),
        "mean_size_of_margin": float(np.abs(margins[scored]).mean()) if scored.any() else None,
        "agrees_with_label": mean(np.where(margins == 0, 0.5, margins > 0), scored),
    }
    if wrong is not None:
        summary["known_wrong"] = int((mask & wrong).sum())
        summary["share_known_wrong"] = mean(wrong, mask)
    return summary


def _tables(report: dict[str, Any], settings: PairSettings) -> Iterator[Table]:
    folds = [
        [
            f"{cycle}, {fold}",
            f"{each['pairs']:,}{' (few)' * (each['pairs'] < FEW)}",
            interval(each["agrees_with_label"]),
        ]
        for cycle, folds in enumerate(report["folds"], start=1)
        for fold, each in enumerate(folds)
    ]
    title = "Models on the pairs they were not trained on"
    yield title, ["cycle, fold", "pairs", "accuracy [95%]"], folds
    known = settings.known_wrong is not None
    sets = [
        [
            name,
            f"{each['pairs']:,}",
            number(each["mean_size_of_margin"]),
            interval(each["agrees_with_label"]),
            *([f"{each['known_wrong']:,}", interval(each["share_known_wrong"])] if known else []),
        ]
        for name, each in report["sets"].items()
    ]
    heads = ["pairs", "number", "mean size of margin", "models agree with label [95%]"]
    heads += ["known wrong", "share known wrong [95%]"] if known else []
    yield f"Kept: {share(settings.keep)} by {settings.rank} margin", heads, sets
