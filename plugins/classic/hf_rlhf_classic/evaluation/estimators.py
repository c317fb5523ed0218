"""The formulas of an evaluation, on plain numbers: KL, win rate, pairwise accuracy, calibration."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIN, TIE, LOSS = 1.0, 0.5, 0.0


def k1(policy: Sequence[float], reference: Sequence[float]) -> NDArray[np.float64]:
    """Return log p(token) - log q(token), shape (tokens,), in nats.

    For tokens drawn from p the mean is KL(p || q), and the sum over a sequence is an unbiased
    estimate of the sequence's KL. Single values may be negative. (Schulman 2020, "Approximating
    KL divergence", k1.) Raises ValueError when the two are not of the same tokens.
    """
    if len(policy) != len(reference):
        raise ValueError(f"{len(policy)} log-probabilities against {len(reference)}")
    return np.asarray(policy, dtype=np.float64) - np.asarray(reference, dtype=np.float64)


def k3(policy: Sequence[float], reference: Sequence[float]) -> NDArray[np.float64]:
    """Return q/p - 1 - log(q/p) per token: as unbiased as `k1`, never negative, of less variance.

    Schulman (2020), k3; GRPO's KL term. Its variance grows where q is far larger than p.
    """
    log_ratio = -k1(policy, reference)
    return np.expm1(log_ratio) - log_ratio


def outcome(mine: float | None, other: float | None) -> float | None:
    """Return 1 if `mine` is higher, 0.5 if they are equal, 0 if lower; None if one is None."""
    if mine is None or other is None:
        return None
    return TIE if mine == other else WIN if mine > other else LOSS


def tally(outcomes: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return the win rate of outcomes (1 win, 0.5 tie, 0 loss, None not judged), and its parts.

    `win_rate` is (wins + ties / 2) / judged; `wins`, `ties` and `losses` are counts, and
    `not_judged` the pairs that do not count. Without a judged pair the rate is None.
    """
    judged = [value for value in outcomes if value is not None]
    return {
        "win_rate": math.fsum(judged) / len(judged) if judged else None,
        "wins": judged.count(WIN),
        "ties": judged.count(TIE),
        "losses": judged.count(LOSS),
        "not_judged": len(outcomes) - len(judged),
    }


def pairwise_accuracy(
    chosen: Sequence[float],
    rejected: Sequence[float],
    chosen_lengths: Sequence[float] | None = None,
    rejected_lengths: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the share of pairs whose chosen answer scores higher; equal scores count a half.

    With lengths also the accuracy where the chosen answer is the longer and the shorter one (None
    without such pairs), and `length_bias`, the first minus the second: 1 of a model that scores
    length alone. Raises ValueError for lists of unequal length, or none at all.
    """
    both = [lengths for lengths in (chosen_lengths, rejected_lengths) if lengths is not None]
    if len(both) == 1:
        raise ValueError("lengths are needed of both answers, or of neither")
    if len(chosen) == 0 or len({len(values) for values in (chosen, rejected, *both)}) > 1:
        raise ValueError("pairs are needed: one score and one length for each answer")
    right = list(map(outcome, chosen, rejected))
    accuracies: dict[str, Any] = {"pairwise_accuracy": _mean(right), "pairs": len(right)}
    if both:
        pairs = list(zip(right, *both, strict=True))
        longer = _mean([value for value, a, b in pairs if a > b])
        shorter = _mean([value for value, a, b in pairs if a < b])
        accuracies |= {
            "accuracy_chosen_longer": longer,
            "accuracy_chosen_shorter": shorter,
            "length_bias": None if longer is None or shorter is None else longer - shorter,
        }
    return accuracies


def expected_calibration_error(
    probabilities: Sequence[float], outcomes: Sequence[float], bins: int = 10
) -> float:
    """Return the mean over bins, weighted by their size, of |mean probability - share of ones|.

    Bins are `bins` equal parts of [0, 1] (Naeini et al. 2015; Guo et al. 2017). Raises
    ValueError for no values, a probability outside [0, 1], an outcome that is neither 0 nor 1, or
    lists of unequal length.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    y = np.asarray(outcomes, dtype=np.float64)
    if p.size == 0 or p.shape != y.shape:
        raise ValueError(f"{p.size} probabilities and {y.size} outcomes: as many are needed")
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("a probability lies outside [0, 1]")
    if not ((y == 0) | (y == 1)).all():
        raise ValueError("an outcome is neither 0 nor 1")
    if bins < 1:
        raise ValueError(f"{bins} bins: at least 1 is needed")
    return calibration_gap(p, y, bins)


def calibration_gap(
    probabilities: NDArray[np.float64], outcomes: NDArray[np.float64], bins: int
) -> float:
    """Return `expected_calibration_error` of values that are known to be valid; ties are 0.5."""
    bin_of = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, probabilities - outcomes)
    return float(np.abs(gaps).sum() / probabilities.size)


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None
