"""Scores by subset as in RewardBench 2 (Malik et al. 2025, arXiv:2506.01937).

A subset's score is the share of its prompts at which a correct response scores highest (best of
four). In the subset Ties several are correct; a question stands in it with one correct answer (`id`
ref:N) and with several (tied:N), and its score is weighted as there.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from hf_rlhf.evaluation import Interval
from hf_rlhf.formatting import code, interval, markdown_table
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.listed import ITEM
from hf_rlhf_lab.validation.checks import Check, Verdict, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import Array, Scored
from hf_rlhf_lab.validation.hacks import holm

NAME = "best of all"


def best_of_all(scored: Scored) -> Check | None:
    """Check that in no subset a correct response is best less often than by chance.

    Fails by an exact binomial test, corrected over the subsets by Holm at 5%; Ties have none. A tie
    for the first place counts as the share of correct ones among the first. Prompts with a response
    without a score are left out. None for data of another form.
    """
    if ITEM not in scored.gold.columns:
        return None
    if reason := degenerate(scored):
        return not_measurable(NAME, f"{reason}, so nothing is best.")
    items = list(_items(scored))
    names = dict.fromkeys(each.subset for each in items)
    rows = [row for name in names if (row := _row(name, items)) is not None]
    rows.sort(key=lambda row: row["score"]["mean"])
    if not rows:
        return not_measurable(NAME, "no prompt has a score for each of its responses.")
    average = float(np.mean([row["score"]["mean"] for row in rows]))
    parts = ", ".join(f"{row['subset']} {row['score']['mean']:.3f}" for row in rows)
    worse = holm([row["p"] for row in rows])
    below = [row["subset"] for row, found in zip(rows, worse, strict=True) if found]
    text = f"on average over {len(rows)} subsets {average:.3f} (RewardBench 2's score): {parts}."
    if below:
        text += f" WORSE than chance: {', '.join(below)}."
    verdict: Verdict = "fail" if below else "pass"
    return Check(NAME, verdict, text, details={"subsets": rows, "average": average})


def subset_table(checks: Sequence[ReportCheck]) -> Iterator[str]:
    """Yield the parts of a report's page on subsets, worst first."""
    for check in checks:
        rows: Any = check.details.get("subsets")
        if check.name == NAME and rows:
            lines = [
                [
                    code(row["subset"]),
                    interval(row["score"]),
                    "" if row["chance"] is None else f"{row['chance']:.2f}",
                    str(row["prompts"]),
                ]
                for row in rows
            ]
            yield "## Best of all responses, by subset"
            yield markdown_table(["subset", "score", "chance", "prompts"], lines)


class _Item:
    """The scores of the correct and the wrong responses to one prompt."""

    def __init__(self, subset: str, key: str, correct: Array, wrong: Array) -> None:
        self.subset, self.key, self.correct, self.wrong = subset, key, correct, wrong

    @property
    def score(self) -> float:
        """Whether a correct response is best, or the share of them among the first."""
        first = max(self.correct.max(), self.wrong.max())
        right, wrong = (int((each == first).sum()) for each in (self.correct, self.wrong))
        return right / (right + wrong)

    @property
    def margin(self) -> float:
        """The worst correct response above the best wrong one."""
        return float(self.correct.min() - self.wrong.max())


def _items(scored: Scored) -> Iterator[_Item]:
    gold = scored.gold
    numbers = np.array(gold.columns[ITEM])
    for number in dict.fromkeys(gold.columns[ITEM]):
        rows = np.flatnonzero(numbers == number)
        scores, right = scored.scores[rows], gold.grades[rows] > 0
        if np.isnan(scores).any() or right.all() or not right.any():
            continue
        subset, key = (
            str(gold.columns[name][rows[0]]) if name in gold.columns else "all"
            for name in ("subset", "id")
        )
        yield _Item(subset, key, scores[right], scores[~right])


def _row(subset: str, items: Sequence[_Item]) -> dict[str, Any] | None:
    own = [each for each in items if each.subset == subset]
    values = _ties(own) if subset.casefold() == "ties" else [each.score for each in own]
    score = Interval.of_mean(values)
    if score is None:
        return None
    is_ties = subset.casefold() == "ties"
    shares = [len(each.correct) / (len(each.correct) + len(each.wrong)) for each in own]
    chance = None if is_ties else float(np.mean(shares))
    p = 1.0 if chance is None else float(binom.cdf(np.ceil(sum(values)), len(own), chance))
    return {
        "subset": subset,
        "score": score.as_json(),
        "chance": chance,
        "p": p,
        "prompts": len(own),
    }


def _ties(items: Sequence[_Item]) -> list[float]:
    """Return the score of each question that has one correct answer and, as another, several.

    0.3 for each of both in which all correct answers are above all wrong ones, 0.2 each where the
    correct ones differ less among each other than from the wrong ones (in the one with several, and
    in both), and 0.01 for by how much.
    """
    kinds: dict[str, dict[str, _Item]] = {}
    for each in items:
        kind, _, question = each.key.partition(":")
        kinds.setdefault(question, {})[kind] = each
    values = []
    for both in kinds.values():
        if {"ref", "tied"} <= both.keys():
            tied, ref = both["tied"], both["ref"]
            spread = float(tied.correct.max() - tied.correct.min())
            least = min(tied.margin, ref.margin)
            excess = np.tanh(least / spread - 1) if spread else np.sign(least)
            met = (tied.margin > 0, ref.margin > 0, tied.margin > spread, least > spread)
            values.append(float(np.dot((0.3, 0.3, 0.2, 0.2, 0.01), (*met, excess))))
    return values
