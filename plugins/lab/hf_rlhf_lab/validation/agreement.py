"""Agreement with the gold grades: pairwise accuracy, rank correlations, the human ceiling."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom, binomtest

from hf_rlhf.evaluation import Interval
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.validation.checks import (
    checked,
    degenerate,
    not_measurable,
    rank_correlation,
    sums_by_cluster,
)
from hf_rlhf_lab.validation.gold import FEW, FEW_PROMPTS, Array, Scored

POWER, ONE_SIDED = 0.8, 0.025

FEWEST = 6
"""With fewer trials, even if all are right, the exact 95% interval reaches below chance."""


def agreement(scored: Scored, name: str = "agreement") -> ReportCheck:
    """Check that the reward finds the better of two responses more often than chance does.

    Passes if the 95% interval of the pairwise accuracy (ties count a half) is above 0.5. Both
    intervals must be: the bootstrap, and the exact interval of `prompt_wins`, which does not narrow
    if a few prompts agree by luck. Spearman's correlation uses all responses.
    """
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so agreement with gold is not defined.")
    accuracy = pair_accuracy(scored.margins, scored.clusters)
    trials = prompt_wins(scored.margins, scored.clusters)[1]
    if trials < FEWEST:
        of = "prompts" if len(np.unique(scored.gold.prompt_numbers)) > 1 else "pairs of the prompt"
        why = f"{trials} {of} where it prefers either response; {FEWEST} are needed, since all of "
        why += "fewer are right too often by chance."
        return not_measurable(name, why, accuracy=accuracy)
    assert accuracy is not None, "there are pairs, or the scores were degenerate"
    scores, grades = scored.scores[scored.valid], scored.gold.grades[scored.valid]
    rank = rank_correlation(scores, grades, scored.gold.clusters[scored.valid])
    measures = {"accuracy": accuracy, "spearman": rank}
    tied = int((scored.margins == 0).sum())
    passed = accuracy.low > 0.5
    text = (
        f"prefers the better response in {accuracy.mean:.3f} of {len(scored.pairs):,} pairs "
        f"[{accuracy.low:.3f}, {accuracy.high:.3f}]"
        + (f", of which {tied:,} {'is a tie' if tied == 1 else 'are ties'}" if tied else "")
        + ("." if passed else f": {against_chance(accuracy.high)}.")
        + _few(scored)
    )
    detectable = detectable_accuracy(scored.margins, scored.clusters)
    if detectable is not None:
        text += f" Such data show an accuracy of {detectable:.3f} with 80% power."
    details = {
        "pairs": len(scored.pairs),
        "ties": tied,
        "detectable": detectable,
    }
    return checked(name, "pass" if passed else "fail", text, measures, details)


def against_chance(high: float) -> str:
    """Return what a pair accuracy shows whose interval does not lie above 0.5."""
    return "WORSE than chance" if high < 0.5 else "not shown to be better than chance"


def _few(scored: Scored) -> str:
    pairs, prompts = len(scored.pairs), len(np.unique(scored.gold.prompt_numbers))
    text = f" Only {pairs} pairs: wide intervals." if pairs < FEW else ""
    if prompts == 1:
        return f"{text} All are of one prompt: nothing is known of others."
    return text + f" Only {prompts} prompts: bootstrap intervals are too narrow." * (
        prompts < FEW_PROMPTS
    )


def prompt_wins(margins: Array, clusters: Sequence[str]) -> tuple[int, int]:
    """Return the number of prompts with most pairs in gold order, and with a clear majority.

    Each prompt is a single trial however many pairs it has, unless all pairs share the prompt.
    """
    sums = sums_by_cluster(np.sign(margins), clusters)
    return int((sums > 0).sum()), int((sums != 0).sum())


def pair_accuracy(margins: Array, clusters: Sequence[str]) -> Interval | None:
    """Return the share of pairs whose better response scores higher; a tie counts a half.

    Of the bootstrap and the exact binomial interval of `prompt_wins` (Clopper and Pearson 1934),
    the bound nearer to 0.5 counts.
    """
    accuracy = Interval.of_mean(_outcomes(margins).tolist(), clusters)
    wins, trials = prompt_wins(margins, clusters)
    if accuracy is None or not trials:
        return accuracy
    exact = binomtest(wins, trials).proportion_ci()
    if accuracy.mean >= 0.5:
        return replace(accuracy, low=min(accuracy.low, exact.low))
    return replace(accuracy, high=max(accuracy.high, exact.high))


def detectable_accuracy(margins: Array, clusters: Sequence[str]) -> float | None:
    """Return the true accuracy that `prompt_wins` distinguishes from 0.5 in 80% of such sets.

    The exact test gives the share of prompts that must be won. The accuracy that reaches it comes
    from the sizes of the prompts' sums of pairs, with random signs and exponential tilting; with a
    single pair per prompt it equals the share. None if even 1 is not distinguishable.
    """
    sums = np.abs(sums_by_cluster(np.sign(margins), clusters))
    trials = int((sums > 0).sum())
    needed = int(binom.isf(ONE_SIDED, trials, 0.5)) + 1
    if needed > trials:
        return None
    share = float(beta.ppf(POWER, needed, trials - needed + 1))

    def won(tilt: float) -> float:
        decided = tilt * sums[sums > 0]
        return float(np.exp(decided).sum() / (2 * np.cosh(decided)).sum())

    most = 20 / sums.max()
    tilt = brentq(lambda each: won(each) - share, 0, most) if won(most) > share else most
    pairs = sums_by_cluster(np.ones_like(margins), clusters)
    balance = (sums * np.sinh(tilt * sums)).sum() / (pairs * np.cosh(tilt * sums)).sum()
    return float(0.5 + balance / 2)


def accuracy_difference(at_home: Scored, elsewhere: Scored) -> Interval | None:
    """Return the accuracy elsewhere minus the accuracy on gold data, resampling prompts of both.

    None if either has fewer than 10 prompts, because the bootstrap interval would be too narrow.
    """
    parts = (at_home, elsewhere)
    outcomes = np.concatenate([_outcomes(each.margins) for each in parts])
    there = np.repeat([0.0, 1.0], [len(each.pairs) for each in parts])
    clusters = [f"{name} {each}" for name, part in enumerate(parts) for each in part.clusters]
    keys, index = np.unique(clusters, return_inverse=True)
    if min(len(set(part.clusters)) for part in parts) < FEW_PROMPTS:
        return None

    def statistic(by_cluster: Array) -> Array:
        weights = by_cluster[:, index]
        with np.errstate(divide="ignore", invalid="ignore"):
            means = [
                (weights * outcomes) @ member / (weights @ member) for member in (there, 1 - there)
            ]
        return np.asarray(means[0] - means[1])

    return Interval.of_statistic(statistic, len(keys))


def _outcomes(margins: Array) -> Array:
    return np.where(margins > 0, 1.0, np.where(margins < 0, 0.0, 0.5))
