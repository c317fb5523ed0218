"""Agreement with the gold grades: pairwise accuracy, rank correlations, the noise ceiling."""

from dataclasses import replace

import numpy as np
from scipy.stats import binomtest, kendalltau

from hf_rlhf.evaluation import Interval
from hf_rlhf_lab.validation.checks import Check, degenerate, not_measurable, rank_correlation
from hf_rlhf_lab.validation.gold import FEW, FEW_PROMPTS, Array, Gold, Scored

FEWEST = 6
"""Of fewer trials, all of them right, the exact 95% interval reaches below chance."""


def agreement(scored: Scored, name: str = "agreement") -> Check:
    """Check that the reward tells the better of two responses more often than chance does.

    Passes where the 95% interval of the pairwise accuracy (ties count a half) is above 0.5: that of
    the bootstrap, and the exact one of `prompt_wins`, which does not narrow where few prompts agree
    by luck. Spearman's and Kendall's (tau-b) correlations are over all responses; the ties are
    counted.
    """
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so agreement with gold is not defined.")
    trials = prompt_wins(scored)[1]
    if trials < FEWEST:
        of = "prompts" if len(np.unique(scored.gold.prompt_numbers)) > 1 else "pairs of the prompt"
        why = f"{trials} {of} where it prefers either response; {FEWEST} are needed, since all of "
        why += "fewer are right too often by chance."
        return not_measurable(name, why, accuracy=pair_accuracy(scored))
    accuracy = pair_accuracy(scored)
    assert accuracy is not None, "there are pairs, or the scores were degenerate"
    scores, grades = scored.scores[scored.valid], scored.gold.grades[scored.valid]
    rank = rank_correlation(scores, grades, scored.gold.clusters[scored.valid])
    measures = {"accuracy": accuracy, "spearman": rank}
    if ceiling := noise_ceiling(scored.gold):
        measures["noise_ceiling"] = ceiling
    tied = int((scored.margins == 0).sum())
    passed = accuracy.low > 0.5
    text = (
        f"prefers the better response in {accuracy.mean:.3f} of {len(scored.pairs):,} pairs "
        f"[{accuracy.low:.3f}, {accuracy.high:.3f}]"
        + (f", of which {tied:,} {'is a tie' if tied == 1 else 'are ties'}" if tied else "")
        + ("." if passed else f": {against_chance(accuracy.high)}.")
        + (f" Labels that repeat allow at most {ceiling.mean:.3f}." if ceiling else "")
        + _few(scored)
    )
    details = {
        "pairs": len(scored.pairs),
        "ties": tied,
        "kendall": float(kendalltau(scores, grades).statistic),
        "tied_scores": 1 - len(np.unique(scores)) / len(scores),
    }
    return Check(name, "pass" if passed else "fail", text, measures, details)


def against_chance(high: float) -> str:
    """Return what an accuracy of pairs whose interval does not lie above 0.5 shows."""
    return "WORSE than chance" if high < 0.5 else "not shown to be better than chance"


def _few(scored: Scored) -> str:
    pairs, prompts = len(scored.pairs), len(np.unique(scored.gold.prompt_numbers))
    text = f" Only {pairs} pairs: wide intervals." if pairs < FEW else ""
    if prompts == 1:
        return f"{text} All are of one prompt: nothing is known of others."
    return text + f" Only {prompts} prompts: too narrow intervals." * (prompts < FEW_PROMPTS)


def prompt_wins(scored: Scored) -> tuple[int, int]:
    """Return at how many prompts most pairs are in the gold's order, and at how many most or few.

    Each prompt is one trial, whatever the number of its pairs, unless all pairs are of one prompt.
    """
    _, index = np.unique(scored.clusters, return_inverse=True)
    sums = np.bincount(index, np.sign(scored.margins))
    return int((sums > 0).sum()), int((sums != 0).sum())


def pair_accuracy(scored: Scored) -> Interval | None:
    """Return the share of pairs whose better response scores higher; a tie counts a half.

    Of the bound that is nearer to 0.5, the bootstrap's and the exact binomial one of `prompt_wins`
    (Clopper and Pearson 1934), the weaker counts.
    """
    accuracy = Interval.of_mean(_outcomes(scored.margins).tolist(), scored.clusters)
    wins, trials = prompt_wins(scored)
    if accuracy is None or not trials:
        return accuracy
    exact = binomtest(wins, trials).proportion_ci()
    if accuracy.mean >= 0.5:
        return replace(accuracy, low=min(accuracy.low, exact.low))
    return replace(accuracy, high=max(accuracy.high, exact.high))


def accuracy_difference(at_home: Scored, elsewhere: Scored) -> Interval | None:
    """Return the accuracy elsewhere minus that on the gold data, resampling prompts of both."""
    parts = (at_home, elsewhere)
    outcomes = np.concatenate([_outcomes(each.margins) for each in parts])
    there = np.repeat([0.0, 1.0], [len(each.pairs) for each in parts])
    clusters = [f"{name} {each}" for name, part in enumerate(parts) for each in part.clusters]
    keys, index = np.unique(clusters, return_inverse=True)
    if not 0 < there.sum() < len(there):
        return None

    def statistic(by_cluster: Array) -> Array:
        weights = by_cluster[:, index]
        with np.errstate(divide="ignore", invalid="ignore"):
            means = [
                (weights * outcomes) @ member / (weights @ member) for member in (there, 1 - there)
            ]
        return np.asarray(means[0] - means[1])

    return Interval.of_statistic(statistic, len(keys))


def noise_ceiling(gold: Gold) -> Interval | None:
    """Return how often one label's order of two responses agrees with that of another label.

    The accuracy that a reward reaches on single labels if it is as good as a further label of
    the same kind. None where labels do not repeat. For each pair, every two labels at different
    positions are compared; equal labels count a half.
    """
    if not gold.labels:
        return None
    values, clusters = [], []
    for first, second in gold.pairs:
        margins = [a - b for a, b in zip(gold.labels[first], gold.labels[second], strict=False)]
        agreed = [
            0.5 if a * b == 0 else float(a * b > 0)
            for at, a in enumerate(margins)
            for b in margins[at + 1 :]
        ]
        if agreed:
            values.append(float(np.mean(agreed)))
            clusters.append(str(gold.clusters[first]))
    return Interval.of_mean(values, clusters)


def _outcomes(margins: Array) -> Array:
    return np.where(margins > 0, 1.0, np.where(margins < 0, 0.0, 0.5))
