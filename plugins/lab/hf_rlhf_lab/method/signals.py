"""Select signals that agree with the grades, and fit the weights of their sum."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from hf_rlhf.evaluation import Interval
from hf_rlhf_lab.validation.checks import correlation_loss, rank_correlation
from hf_rlhf_lab.validation.gold import Array, Gold
from hf_rlhf_lab.validation.validate import MOST_ABSTENTIONS


def calibrate(scores: Array, gold: Gold, min_rho: float) -> dict[str, Any]:
    """Return a signal's rank correlation with the grades and whether to use the signal."""
    scored = ~np.isnan(scores)
    absent = 1 - float(scored.mean())
    if absent > MOST_ABSTENTIONS:
        reason = f"no score for {absent:.0%} of the responses"
        return {"rho": None, "kept": False, "reason": reason}
    rho = rank_correlation(scores[scored], gold.grades[scored], gold.clusters[scored])
    reason = missing(rho, min_rho)
    return {"rho": rho and rho.as_json(), "kept": not reason, "reason": reason}


def missing(rho: Interval | None, minimum: float) -> str:
    """Return what a correlation lacks: rho above the minimum, an interval above 0."""
    if rho is None:
        return "constant: no correlation"
    if rho.mean <= minimum:
        return f"rho {rho.mean:.2f} is not above {minimum:.2f}"
    return "" if rho.low > 0 else f"the interval of rho begins at {rho.low:.2f}"


def fit_weights(
    scores: Mapping[str, Array], gold: Gold, *, test: NDArray[np.bool_], min_rho: float
) -> dict[str, Any]:
    """Return non-negative weights of standardised signals, and the agreement of their sum.

    Uses non-negative least squares (Lawson and Hanson 1974), with means and standard deviations, on
    the prompts outside the test split. Measured on the test split: rho of the weighted sum and, for
    each signal, the drop of rho if the weights are refitted without it.

    Args:
        scores: of each signal, shape (responses,), NaN where it abstained.
        gold: the responses with their grades.
        test: shape (responses,): whether the response is for testing.
        min_rho: minimum rho of the sum.
    """
    labels = list(scores)
    table = np.stack(list(scores.values()), axis=1)
    complete = ~np.isnan(table).any(axis=1)
    fitted, tested = complete & ~test, complete & test
    means, stds = table[fitted].mean(axis=0), table[fitted].std(axis=0)
    stds[stds == 0] = np.inf  # constant on these prompts: nothing to fit
    standard = (table - means) / stds
    grades, groups = gold.grades[tested], gold.clusters[tested]

    def predicted(columns: list[int]) -> tuple[Array, Array]:
        part = standard[:, columns]
        target = gold.grades[fitted] - gold.grades[fitted].mean()
        weights = nnls(part[fitted], target)[0]
        return weights, part[tested] @ weights

    every = list(range(len(labels)))
    weights, total = predicted(every)
    rho = rank_correlation(total, grades, groups)
    losses = {}
    for column, label in enumerate(labels):
        rest = [other for other in every if other != column]
        without = predicted(rest)[1] if rest else np.zeros_like(total)
        loss = correlation_loss(total, without, grades, groups)
        losses[label] = loss and loss.as_json()
    scale = weights.sum() or 1.0
    reason = missing(rho, min_rho) if weights.any() else "every weight is 0"
    return {
        "signals": {
            label: {"weight": float(weight / scale), "mean": float(mean), "std": float(std)}
            for label, weight, mean, std in zip(labels, weights, means, stds, strict=True)
        },
        "rho": rho and rho.as_json(),
        "loss": losses,
        "responses": {"fit": int(fitted.sum()), "test": int(tested.sum())},
        "passed": not reason,
        "reason": f"on the test prompts, {reason}" if reason else "",
    }


def drawn_for_testing(gold: Gold, share: float, seed: int) -> NDArray[np.bool_]:
    """Return whether each response is for testing; a prompt's responses stay together."""
    numbers = np.unique(gold.prompt_numbers)
    drawn = np.random.default_rng(seed).permutation(numbers)[: round(share * len(numbers))]
    return np.isin(gold.prompt_numbers, drawn)
