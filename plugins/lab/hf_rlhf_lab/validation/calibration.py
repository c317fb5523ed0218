"""Calibration: whether score margins are the log odds of the Bradley-Terry model.

Under that model (1952) the response with the higher score is better with probability
sigmoid(|margin|). Bins are deciles of |margin|: in bins of the signed margin of (better, worse) the
share of right answers would be 0 or 1 by construction.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from hf_rlhf.evaluation import Interval
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.validation.checks import checked, degenerate, not_measurable
from hf_rlhf_lab.validation.gold import FEW, Array, Scored

BINS = 10
SIMULATIONS = 2_000
FOLDS = 5
_TEMPERATURES = (1e-3, 1e3)


def calibration(scored: Scored) -> ReportCheck:
    """Check that margins are log odds: ECE no larger than a calibrated reward's by chance.

    It warns and never fails: a rule, a rescaled reward or a grade orders responses as well, and a
    run that needs log odds can require an `ece`.

    ECE (Naeini et al. 2015) is biased upwards on few pairs; even perfect calibration gives a
    positive value. It is simulated for these margins; the check passes if the measured ECE is at
    most the 95th percentile. Two corrections are measured: dividing by a temperature
    (cross-validated), and clipping margins at 1.5 standard deviations.
    """
    name = "calibration"
    if reason := degenerate(scored):
        return not_measurable(name, f"{reason}, so margins have no meaning.")
    no_tie = scored.margins != 0
    decided, prompts = scored.margins[no_tie], np.array(scored.clusters)[no_tie]
    if len(decided) < FEW:
        return not_measurable(name, f"{len(decided)} pairs without a tie; {FEW} are needed.")
    size, right = np.abs(decided), (decided > 0).astype(float)
    ece = expected_error(expit(size), right)
    expected, limit = chance_error(expit(size))
    corrected, value = with_temperature(size, right)
    accuracy = Interval.of_mean(right.tolist(), prompts.tolist())
    passed = ece <= limit
    text = (
        f"ECE {ece:.3f}; a calibrated reward has {expected:.3f} on {len(size):,} pairs, "
        f"at most {limit:.3f} in 95%."
    )
    if not passed:
        low, high = _TEMPERATURES
        if right.mean() <= 0.5:
            text += " No temperature helps a reward that is right in half of the pairs or fewer."
        elif corrected < ece and 1.01 * low < value < high / 1.01:
            text += f" Dividing scores by {value:.3g} gives {corrected:.3f} (cross-validated)."
        else:
            text += " No temperature mends it."
    details = {
        "ece": ece,
        "ece_of_calibrated": expected,
        "ece_limit": limit,
        "ece_corrected": max(0.0, ece - expected),
        "bins": bins(expit(size), right, prompts.tolist()),
        "temperature": {"value": value, "ece": corrected},
    }
    return checked(
        name, "pass" if passed else "warn", text, {"decided_accuracy": accuracy}, details
    )


def bins(p: Array, right: Array, prompts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the implied probability and the share that is right, by deciles of |margin|."""
    parts = np.array_split(np.argsort(p, kind="stable"), min(BINS, len(p)))
    shares = [Interval.of_mean(right[part].tolist(), [prompts[n] for n in part]) for part in parts]
    return [
        {"implied": float(p[part].mean()), "observed": share.as_json(), "pairs": len(part)}
        for part, share in zip(parts, shares, strict=True)
        if share is not None
    ]


def expected_error(p: Array, right: Array) -> float:
    """Return the expected calibration error over deciles of `p`, weighted by their size."""
    order = np.argsort(p, kind="stable")
    parts = np.array_split((p - right)[order], min(BINS, len(p)))
    return float(sum(abs(part.sum()) for part in parts) / len(p))


def chance_error(p: Array) -> tuple[float, float]:
    """Return mean and 95th percentile of the ECE under the true probabilities `p`."""
    sorted_p = np.sort(p)
    rng = np.random.default_rng(0)
    edges = np.cumsum([0] + [len(part) for part in np.array_split(sorted_p, min(BINS, len(p)))])
    errors = np.empty(SIMULATIONS)
    for number in range(SIMULATIONS):
        gaps = sorted_p - (rng.random(len(p)) < sorted_p)
        errors[number] = np.abs(np.add.reduceat(gaps, edges[:-1])).sum() / len(p)
    return float(errors.mean()), float(np.quantile(errors, 0.95))


def with_temperature(size: Array, right: Array) -> tuple[float, float]:
    """Return the ECE of sigmoid(|margin| / T), T fitted on the other folds, and T of all pairs."""
    p = np.empty_like(size)
    order = np.random.default_rng(0).permutation(len(size))
    for fold in np.array_split(order, min(FOLDS, len(size))):
        rest = np.setdiff1d(order, fold)
        p[fold] = expit(size[fold] / temperature(size[rest], right[rest]))
    return expected_error(p, right), temperature(size, right)


def temperature(size: Array, right: Array) -> float:
    """Return the most likely T for sigmoid(|margin| / T) (Guo et al. 2017)."""

    def loss(log_t: float) -> float:
        z = size / np.exp(log_t)
        return float(np.logaddexp(0, np.where(right > 0, -z, z)).mean())

    low, high = np.log(_TEMPERATURES)
    return float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x))
