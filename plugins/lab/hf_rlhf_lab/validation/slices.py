"""Slices: agreement in each part of the gold data, by the values of a column."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import binom

from hf_rlhf.evaluation import holm
from hf_rlhf.formatting import code, excerpt, interval, listed, markdown_table, plain, visible
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.validation.agreement import FEWEST, pair_accuracy, prompt_wins
from hf_rlhf_lab.validation.checks import ALPHA, Verdict, checked, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Scored

_NAME = 40


def slices(scored: Scored, column: str) -> ReportCheck:
    """Check that the reward is not worse than chance in any slice of the gold data.

    A slice holds the pairs whose responses have the same value of the column; pairs of two values
    form the slice `a / b`. Fails if the accuracy is below 0.5 by an exact one-sided binomial test
    over prompts, corrected over the slices by Holm at 5%. Warns if a slice is not significantly
    better than chance, or unmeasurable because the reward decides fewer than 6 prompts.
    `worst_slice` is the lowest accuracy, with the lowest bounds of all slices.
    """
    name = f"slices: {column}"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so agreement with gold is not defined.")
    values = [_text(value) for value in scored.gold.columns[column]]
    names = np.array([" / ".join(sorted({values[a], values[b]})) for a, b in scored.pairs])
    clusters = np.array(scored.clusters)
    rows, small = list[dict[str, Any]](), list[str]()
    for value in dict.fromkeys(names.tolist()):
        part = scored.margins[names == value], clusters[names == value].tolist()
        wins, trials = prompt_wins(*part)
        if trials < FEWEST:
            small.append(value)
            continue
        p = float(binom.cdf(wins, trials, 0.5))
        rows.append(
            {"slice": value, "accuracy": pair_accuracy(*part), "pairs": len(part[0]), "p": p}
        )
    too_small = f" Not measurable, fewer than {FEWEST} prompts decided: {_names(small)}."
    if not rows:
        return not_measurable(name, f"no slice is large enough.{too_small}")
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["worse_than_chance"] = adjusted <= ALPHA
    rows.sort(key=lambda row: row["accuracy"].mean)
    wrong = [row for row in rows if row["worse_than_chance"]]
    if wrong:
        text = f"WORSE than chance in {_described(wrong)}."
    else:
        text = f"none of {len(rows)} is shown to be worse than chance; the worst is "
        text += f"{_described(rows[:1])}."
    chance = [row["slice"] for row in rows if row["accuracy"].low <= 0.5 and row not in wrong]
    if chance:
        text += f" Not shown to be better than chance: {_names(chance)}."
    accuracies = [row["accuracy"] for row in rows]
    low, high = (min(getattr(each, end) for each in accuracies) for end in ("low", "high"))
    measures = {"worst_slice": replace(accuracies[0], low=low, high=high)}
    details = {
        "slices": [{**row, "accuracy": row["accuracy"].as_json()} for row in rows],
        "too_small": small,
    }
    verdict: Verdict = "fail" if wrong else "warn" if chance or small else "pass"
    return checked(name, verdict, text + too_small * bool(small), measures, details)


def slice_tables(checks: Sequence[ReportCheck]) -> Iterator[str]:
    """Yield the parts of a report's page on slices, worst first."""
    for check in checks:
        rows: Any = [
            [
                code(row["slice"]),
                interval(row["accuracy"]),
                str(row["pairs"]),
                "**WORSE than chance**" if row["worse_than_chance"] else "",
            ]
            for row in check.details.get("slices", ())
        ]
        if rows:
            yield f"## Agreement by {plain(check.name.partition(': ')[2])}"
            yield markdown_table(["slice", "accuracy", "pairs", ""], rows)


def _described(rows: list[dict[str, Any]]) -> str:
    return listed(
        [
            f"{row['slice']!r} ({row['accuracy'].mean:.3f} of {row['pairs']:,} pairs "
            f"[{row['accuracy'].low:.3f}, {row['accuracy'].high:.3f}])"
            for row in rows
        ]
    )


def _names(values: list[str]) -> str:
    shown = ", ".join(map(repr, values[:5]))
    return shown + (f" and {len(values) - 5} more" if len(values) > 5 else "")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return visible(" ".join(excerpt(text, _NAME).split()))
