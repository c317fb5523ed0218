"""The t interval of a mean over few training seeds that were all measured on the same rows."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_NORMAL = 10_000.0
"""Degrees of freedom from which on t differs from the normal distribution in the fifth digit."""
_ROUNDING = 1e-12
"""Relative size below which a variance is 0."""


class CrossedInterval(NamedTuple):
    """A mean, its 95% interval, and p."""

    mean: float
    low: float
    high: float
    p: float | None
    """Two-sided, of a true mean of 0; None where nothing varies."""
    freedom: float = 0.0
    """Degrees of freedom."""


def crossed_mean(values: ArrayLike) -> CrossedInterval:
    """Return the mean of `values`, shape (seeds, rows), as an estimate over other seeds and rows.

    Both are random effects, crossed: their two-way layout gives the variance of the mean, and a t
    interval has Satterthwaite's degrees of freedom, as in multi-reader studies, where readers
    stand in the place of seeds (Obuchowski & Rockette 1995; Hillis 2007). With one seed the
    interval is over rows alone, with one row over seeds alone. A percentile bootstrap of three
    seeds would be far too narrow. Raises ValueError without values.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"expected values of shape (seeds, rows), got {table.shape}")
    mean = float(table.mean())
    variance, freedom = _variance_of_mean(table)
    if variance <= 0 or freedom < 1:
        return CrossedInterval(mean, mean, mean, None)
    error = math.sqrt(variance)
    half = t_quantile(0.975, freedom) * error
    p = 2 * (1 - t_probability(abs(mean) / error, freedom))
    return CrossedInterval(mean, mean - half, mean + half, p, freedom)


def _variance_of_mean(table: NDArray[np.float64]) -> tuple[float, float]:
    """Return the variance of the grand mean, and its degrees of freedom (0: not known)."""
    seeds, rows = table.shape
    if min(seeds, rows) == 1:
        count = table.size
        return (float(table.var(ddof=1)) / count, count - 1) if count > 1 else (0.0, 0)
    by_seed, by_row = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_row + table.mean()
    of_seeds = rows * float(by_seed.var(ddof=1))
    of_rows = seeds * float(by_row.var(ddof=1))
    free = (seeds - 1) * (rows - 1)
    of_rest = float((rest**2).sum()) / free
    mean_square, scatter = of_seeds, of_seeds**2 / (seeds - 1)
    if of_rows > of_rest:
        mean_square += of_rows - of_rest
        scatter += of_rows**2 / (rows - 1) + of_rest**2 / free
    if mean_square <= of_rest * _ROUNDING:
        # Seeds agree, and so do rows, while the values differ: what is left is noise of both.
        return of_rest / (seeds * rows), free
    # The difference of mean squares can bring the approximation below what either factor has.
    freedom = max(mean_square**2 / scatter, min(seeds, rows) - 1)
    return mean_square / (seeds * rows), freedom


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution with `freedom` >= 1, to about 4 digits."""
    freedom = min(freedom, _NORMAL)
    angles, below = _t_by_angle(freedom)
    return math.sqrt(freedom) * math.tan(float(np.interp(probability, below, angles)))


def t_probability(t: float, freedom: float) -> float:
    """Return the probability that Student's t with `freedom` >= 1 is at most `t`."""
    freedom = min(freedom, _NORMAL)
    angles, below = _t_by_angle(freedom)
    return float(np.interp(math.atan(t / math.sqrt(freedom)), angles, below))


def _t_by_angle(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles u and the probability of t <= sqrt(freedom) tan(u).

    u has a density proportional to cos(u) ** (freedom - 1), which is bounded, so that plain sums
    do; scipy would be a large dependency for one quantile.
    """
    angles = np.linspace(-math.pi / 2, math.pi / 2, 20_001)
    density = np.cos((angles[1:] + angles[:-1]) / 2) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density)])
    return angles, below / below[-1]
