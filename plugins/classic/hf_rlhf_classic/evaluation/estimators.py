"""Formulas of an evaluation on plain numbers: KL, win rate, calibration."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIN, TIE, LOSS = 1.0, 0.5, 0.0


def k1(policy: Sequence[float], reference: Sequence[float]) -> NDArray[np.float64]:
    """Return log p(token) - log q(token), shape (tokens,), in nats.

    For tokens drawn from p the mean is KL(p || q), and the sum over a sequence is an unbiased
    estimate of the sequence's KL. Single values may be negative. (Schulman 2020, "Approximating KL
    divergence", k1.) Raises ValueError if the two have different tokens.
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
    """Return 1 if `mine` is higher, 0.5 if equal, 0 if lower; None if either is None."""
    if mine is None or other is None:
        return None
    return TIE if mine == other else WIN if mine > other else LOSS


def tally(outcomes: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return the win rate of outcomes (1 win, 0.5 tie, 0 loss, None not judged), and its parts.

    `win_rate` is (wins + ties / 2) / judged; `wins`, `ties` and `losses` are counts, and
    `not_judged` counts the rest. Without a judged pair the rate is None.
    """
    judged = [value for value in outcomes if value is not None]
    return {
        "win_rate": math.fsum(judged) / len(judged) if judged else None,
        "wins": judged.count(WIN),
        "ties": judged.count(TIE),
        "losses": judged.count(LOSS),
        "not_judged": len(outcomes) - len(judged),
    }


def calibration_gap(
    probabilities: NDArray[np.float64], outcomes: NDArray[np.float64], bins: int
) -> float:
    """Return the expected calibration error: over bins, weighted by their size, the mean of
    |mean probability - share of ones|.

    Bins are equal parts of [0, 1] (Naeini et al. 2015; Guo et al. 2017). A tie is 0.5.
    """
    bin_of = np.minimum((probabilities * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, probabilities - outcomes)
    return float(np.abs(gaps).sum() / probabilities.size)
