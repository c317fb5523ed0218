"""What the scores say: how good the models are, what is kept, and which known errors go."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_rlhf.config import dump_yaml
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, markdown_table, print_table, share
from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_lab.pairs.choice import Array, Mask
from hf_rlhf_lab.pairs.folder import PairFolder, Row, lines

if TYPE_CHECKING:
    from hf_rlhf_lab.pairs.command import PairSettings

FEW = 30
"""Pairs in a fold below which the report says so."""
Table = tuple[str, list[str], list[list[str]]]
"""Title, headings, rows."""


def write_report(pairs: PairFolder, settings: "PairSettings") -> dict[str, Any]:
    """Write rows, rejected rows, report and plot; print the tables; return the report."""
    from rich.console import Console

    rows, margins = pairs.rows("train"), pairs.margins(settings.cycles)
    strata = settings.strata_of(rows)
    kept = settings.confident(margins, strata)
    sets = {
        "all": np.ones(len(rows), bool),
        "kept": kept,
        "random": settings.random(margins, strata),
        "left out": ~kept,
    }
    known = settings.known_wrong
    wrong = None if known is None else np.array([row[known] for row in rows])
    section = {"name": "confident_pairs", "folder": str(pairs.path), **settings.choice}
    section = {key: value for key, value in section.items() if value is not None}
    reasons = ["no score" if np.isnan(margin) else "not chosen" for margin in margins[~kept]]
    report: dict[str, Any] = {
        "verb": "confident_pairs",
        "prompts": len(rows),
        "rows": int(kept.sum()),
        "rejected": dict(Counter(reasons)),
        "usage": {},
        "test_rows": len(pairs.rows("test")),
        "folds": [_folds(pairs, rows, cycle) for cycle in range(1, settings.cycles + 1)],
        "sets": {name: _summary(mask, margins, wrong, rows) for name, mask in sets.items()},
        "strata": _strata(strata, kept),
        "dataset": section,
    }
    tables = _tables(report, settings)
    use = f"Train on the pairs that are kept:\n\n{_indented(section)}"
    page = [f"## {title}\n\n{markdown_table(heads, body, 1)}" for title, heads, body in tables]
    pages = ["# Pairs that reward models are sure of", *page, "![Margins](margins.png)", use]
    _draw(pairs, margins, kept, wrong)
    _write_rows(pairs, rows, margins, kept, reasons)
    atomic_write_text(pairs.path / "report.md", "\n\n".join(pages) + "\n")
    atomic_write_json(pairs.path / "report.json", report)
    for title, heads, body in tables:
        print_table(Console(), heads, body, title)
    print(use)
    return report


def _write_rows(
    pairs: PairFolder, rows: Sequence[Row], margins: Array, kept: Mask, reasons: Sequence[str]
) -> None:
    scored = [
        {**row, "fold": fold, "score_margin": None if np.isnan(margin) else float(margin)}
        for row, fold, margin in zip(rows, pairs.folds, margins, strict=True)
    ]
    chosen = [scored[at] for at in np.flatnonzero(kept)]
    others = zip(np.flatnonzero(~kept), reasons, strict=True)
    rejected = [{**scored[at], "reason": reason} for at, reason in others]
    atomic_write_text(pairs.path / "rows.jsonl", lines(chosen))
    atomic_write_text(pairs.path / "rejected.jsonl", lines(rejected))


def _indented(section: dict[str, Any]) -> str:
    return "".join(f"    {line}\n" for line in dump_yaml({"dataset": section}).splitlines())


def _agrees(margins: Array) -> list[float]:
    return [float(value) for value in np.where(margins == 0, 0.5, margins > 0)]


def _mean(values: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any] | None:
    mean = Interval.of_mean(list(values), [str(row["prompt"]) for row in rows])
    return None if mean is None else mean.as_json()


def _folds(pairs: PairFolder, rows: Sequence[Row], cycle: int) -> list[dict[str, Any]]:
    margins, folds = pairs.margins(cycle), np.array(pairs.folds)
    results = []
    for fold in sorted(set(pairs.folds)):
        index = np.flatnonzero((folds == fold) & ~np.isnan(margins))
        accuracy = _mean(_agrees(margins[index]), [rows[int(at)] for at in index])
        results.append({"fold": fold, "pairs": int((folds == fold).sum()), "accuracy": accuracy})
    return results


def _summary(mask: Mask, margins: Array, wrong: Mask | None, rows: Sequence[Row]) -> dict[str, Any]:
    index = np.flatnonzero(mask & ~np.isnan(margins))
    some = margins[index]
    summary: dict[str, Any] = {
        "pairs": int(mask.sum()),
        "mean_size_of_margin": float(np.abs(some).mean()) if len(some) else None,
        "agrees_with_label": _mean(_agrees(some), [rows[int(at)] for at in index]),
    }
    if wrong is not None:
        among = [rows[int(at)] for at in np.flatnonzero(mask)]
        summary["known_wrong"] = int((mask & wrong).sum())
        summary["share_known_wrong"] = _mean(wrong[mask].astype(float).tolist(), among)
        found = index[wrong[index]]
        summary["known_wrong_ordered_against_label"] = int((margins[found] < 0).sum())
    return summary


def _strata(strata: Sequence[str], kept: Mask) -> dict[str, dict[str, int]]:
    every, chosen = Counter(strata), Counter(np.array(strata)[kept].tolist())
    return {name: {"pairs": every[name], "kept": chosen[name]} for name in sorted(every)}


def _tables(report: dict[str, Any], settings: "PairSettings") -> "list[Table]":
    def few(fold: dict[str, Any]) -> str:
        return " (few)" if fold["pairs"] < FEW else ""

    folds = [
        [f"{cycle}, {each['fold']}", f"{each['pairs']:,}{few(each)}", interval(each["accuracy"])]
        for cycle, folds in enumerate(report["folds"], start=1)
        for each in folds
    ]
    known = settings.known_wrong is not None
    sets = [
        [
            name,
            f"{each['pairs']:,}",
            f"{each['mean_size_of_margin']:.3f}" if each["pairs"] else "",
            interval(each["agrees_with_label"]),
            *([f"{each['known_wrong']:,}", interval(each["share_known_wrong"])] if known else []),
        ]
        for name, each in report["sets"].items()
    ]
    strata = [
        [
            name or "all",
            f"{each['pairs']:,}",
            f"{each['kept']:,}",
            share(each["kept"] / each["pairs"]),
        ]
        for name, each in report["strata"].items()
    ]
    heads = ["pairs", "number", "mean size of margin", "models agree with label [95%]"]
    heads += ["known wrong", "share known wrong [95%]"] if known else []
    return [
        (
            "Models on the pairs they were not trained on",
            ["cycle, fold", "pairs", "accuracy [95%]"],
            folds,
        ),
        (f"Kept: {share(settings.keep)} by {settings.rank} margin", heads, sets),
        ("Strata", ["stratum", "pairs", "kept", "share"], strata),
    ]


def _draw(pairs: PairFolder, margins: Array, kept: Mask, wrong: Mask | None) -> None:
    from hf_rlhf.cards import png_panels

    parts = {"kept": kept, "left out": ~kept}
    if wrong is not None:
        parts = {
            f"{name}, {text}": mask & (wrong == value)
            for name, mask in parts.items()
            for text, value in (("label right", False), ("label wrong", True))
        }
    caption = "Score of the chosen less the rejected response, by models trained on other pairs"
    with png_panels(pairs.path / "margins.png", 1, (7.0, 3.6), caption=caption) as (axes,):
        values = [margins[mask & ~np.isnan(margins)] for mask in parts.values()]
        axes.hist(values, bins=40, stacked=True, label=list(parts))
        axes.axvline(0, color="#999999", lw=1, ls="--")
        axes.set(xlabel="margin", ylabel="pairs")
        axes.legend(frameon=False, fontsize=8)
