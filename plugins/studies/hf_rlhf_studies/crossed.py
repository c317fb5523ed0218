"""The t interval of a mean over few training seeds that were all measured on the same rows."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr, stdtrit  # Student's t: its distribution, and quantiles

_ROUNDING = 1e-12
"""Relative size below which a variance is 0."""


class TInterval(NamedTuple):
    """The 95% interval of a mean by Student's t."""

    low: float
    high: float
    p: float | None = None
    """Two-sided, of a true mean of 0; None where nothing varies."""
    freedom: float = 0.0
    """Degrees of freedom."""


def crossed_interval(values: ArrayLike) -> TInterval:
    """Return the interval of the mean of `values`, shape (seeds, rows), over other seeds and rows.

    Both are random effects, crossed: their two-way layout gives the variance of the mean, and a t
    interval has Satterthwaite's degrees of freedom, as in multi-reader studies, where readers
    stand for seeds (Obuchowski & Rockette 1995; Hillis 2007). With one seed the
    interval is over rows alone, with one row over seeds alone. A percentile bootstrap of three
    seeds would be far too narrow. Raises ValueError without values.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"expected values of shape (seeds, rows), got {table.shape}")
    mean = float(table.mean())
    variance, freedom = _variance_of_mean(table)
    if variance <= 0 or freedom < 1:
        return TInterval(mean, mean)
    error = math.sqrt(variance)
    half = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return TInterval(mean - half, mean + half, p, freedom)


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
