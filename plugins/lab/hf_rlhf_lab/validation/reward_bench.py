"""Compute scores by subset as in RewardBench 2 (Malik et al. 2025, arXiv:2506.01937).

A subset's score is the share of prompts with a correct response at the top (best of four). The
subset Ties has several correct responses; each question occurs with a single correct answer (`id`
ref:N) and with several (tied:N), and its score is weighted as in RewardBench 2.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from hf_rlhf.evaluation import Interval, holm
from hf_rlhf.formatting import code, interval, markdown_table
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.graded import ITEM
from hf_rlhf_lab.validation.checks import ALPHA, checked, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Array, Scored

NAME, TIES = "best of all", "ties"
Scores = tuple[Array, Array]
"""Correct and wrong responses to a prompt."""


def best_of_all(scored: Scored) -> ReportCheck | None:
    """Check that a correct response is best in each subset at least as often as by chance.

    Fails by an exact binomial test, corrected over the subsets by Holm at 5%; Ties has no test. A
    tie for first place counts as the share of correct responses in it. Prompts with an unscored
    response are left out. None for other data.
    """
    if ITEM not in scored.gold.columns:
        return None
    if reason := degenerate(scored):
        return not_measurable(NAME, f"{reason}, so nothing is best.")
    items = _by_subset(scored)
    rows = [row for name, own in items.items() if (row := _row(name, own)) is not None]
    if not rows:
        return not_measurable(NAME, "no prompt has a score for each of its responses.")
    rows.sort(key=lambda row: row["score"]["mean"])
    average = float(np.mean([row["score"]["mean"] for row in rows]))
    parts = ", ".join(f"{row['subset']} {row['score']['mean']:.3f}" for row in rows)
    text = f"on average over {len(rows)} subsets {average:.3f} (RewardBench 2's score): {parts}."
    worse = zip(rows, holm([row["p"] for row in rows]), strict=True)
    if below := [row["subset"] for row, adjusted in worse if adjusted <= ALPHA]:
        text += f" WORSE than chance: {', '.join(below)}."
    details = {"subsets": rows, "average": average}
    return checked(NAME, "fail" if below else "pass", text, details=details)


def subset_table(checks: Sequence[ReportCheck]) -> Iterator[str]:
    """Yield the parts of a report's page on subsets, worst first."""
    rows: list[Any] = [row for each in checks for row in each.details.get("subsets", ())]
    lines = [[code(row["subset"]), interval(row["score"]), str(row["prompts"])] for row in rows]
    if lines:
        yield "## Best of all responses, by subset"
        yield markdown_table(["subset", "score", "prompts"], lines)


def _by_subset(scored: Scored) -> dict[str, list[tuple[str, Scores]]]:
    """Return the items of each subset with their scores."""
    gold, numbers = scored.gold, np.array(scored.gold.columns[ITEM])
    subsets: dict[str, list[tuple[str, Scores]]] = {}
    for number in np.unique(numbers):
        rows = np.flatnonzero(numbers == number)
        scores, right = scored.scores[rows], gold.grades[rows] > 0
        if not np.isnan(scores).any() and right.any() and not right.all():
            subset, key = (
                str(gold.columns[name][rows[0]]) if name in gold.columns else "all"
                for name in ("subset", "id")
            )
            subsets.setdefault(subset, []).append((key, (scores[right], scores[~right])))
    return subsets


def _row(subset: str, items: Sequence[tuple[str, Scores]]) -> dict[str, Any] | None:
    p = 1.0
    if subset.casefold() == TIES:
        values = list(_ties(items))
    else:
        firsts = [[(each == max(map(max, both))).sum() for each in both] for _, both in items]
        values = [right / (right + wrong) for right, wrong in firsts]
        chance = np.mean([len(right) / (len(right) + len(wrong)) for _, (right, wrong) in items])
        p = float(binom.cdf(np.ceil(sum(values)), len(values), chance))
    score = Interval.of_mean(values)
    row = {"subset": subset, "p": p, "prompts": len(items)}
    return None if score is None else {**row, "score": score.as_json()}


def _ties(items: Sequence[tuple[str, Scores]]) -> Iterator[float]:
    """Yield the score of each question that occurs with a single and with several correct answers.

    Add 0.3 for each of both with all correct answers above all wrong answers. Add 0.2 each if the
    correct answers differ less among each other than from the wrong answers (in the version with
    several, and in both), and 0.01 for the amount.
    """
    scores = dict(items)
    for key, (several, wrong) in items:
        kind, _, question = key.partition(":")
        if kind == "tied" and (ref := scores.get(f"ref:{question}")) is not None:
            spread, margin = np.ptp(several), several.min() - wrong.max()
            least = min(margin, ref[0].min() - ref[1].max())
            excess = np.tanh(least / spread - 1) if spread else np.sign(least)
            met = (margin > 0, ref[0].min() > ref[1].max(), margin > spread, least > spread)
            yield float(np.dot((0.3, 0.3, 0.2, 0.2, 0.01), (*met, excess)))
