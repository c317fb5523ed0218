"""What the scores say: how good the models are, what is kept, and which known errors go."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_rlhf.config import dump_yaml
from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import interval, markdown_table, number, print_table, share
from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_lab.pairs.choice import Array, Mask
from hf_rlhf_lab.pairs.folder import PairFolder, Row, lines

if TYPE_CHECKING:
    from hf_rlhf_lab.pairs.command import PairSettings

FEW = 30
"""Pairs in a fold below which the report says so."""
_NOISE = (
    "The models are not shown to order pairs better than chance, so the choice may be noise: bring "
    "more pairs, or train longer."
)
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
    folds, known = np.array(pairs.folds), settings.known_wrong
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
        "folds": [
            [
                _summary(folds == fold, pairs.margins(cycle), wrong, rows)
                for fold in range(settings.folds)
            ]
            for cycle in range(1, settings.cycles + 1)
        ],
        "sets": {name: _summary(mask, margins, wrong, rows) for name, mask in sets.items()},
        "strata": _strata(strata, kept),
        "dataset": section,
    }
    tables = list(_tables(report, settings))
    agreement = report["sets"]["all"]["agrees_with_label"]
    use = "" if agreement and agreement["low"] > 0.5 else f"{_NOISE}\n\n"
    use += f"Train on the pairs that are kept:\n\n{_indented(section)}"
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


def _mean(values: Any, rows: Sequence[Row], mask: Mask) -> dict[str, Any] | None:
    """Return the mean over the rows of a mask, with its interval over prompts."""
    index = np.flatnonzero(mask)
    prompts = [str(rows[int(row)]["prompt"]) for row in index]
    mean = Interval.of_mean([float(value) for value in values[index]], prompts)
    return None if mean is None else mean.as_json()


def _summary(mask: Mask, margins: Array, wrong: Mask | None, rows: Sequence[Row]) -> dict[str, Any]:
    scored = mask & ~np.isnan(margins)
    agrees = np.where(margins == 0, 0.5, margins > 0)
    summary: dict[str, Any] = {
        "pairs": int(mask.sum()),
        "mean_size_of_margin": float(np.abs(margins[scored]).mean()) if scored.any() else None,
        "agrees_with_label": _mean(agrees, rows, scored),
    }
    if wrong is not None:
        summary["known_wrong"] = int((mask & wrong).sum())
        summary["share_known_wrong"] = _mean(wrong, rows, mask)
    return summary


def _strata(strata: Sequence[str], kept: Mask) -> dict[str, dict[str, int]]:
    every, chosen = Counter(strata), Counter(np.array(strata)[kept].tolist())
    return {name: {"pairs": every[name], "kept": chosen[name]} for name in sorted(every) if name}


def _tables(report: dict[str, Any], settings: "PairSettings") -> Iterator[Table]:
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
    strata = [
        [name, f"{each['pairs']:,}", f"{each['kept']:,}"] for name, each in report["strata"].items()
    ]
    if strata:
        yield "Strata", ["stratum", "pairs", "kept"], strata


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
