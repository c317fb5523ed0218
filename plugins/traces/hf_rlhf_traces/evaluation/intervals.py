"""Means with 95% intervals over samples that overlap: those of one question go together."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHOD = (
    "mean over samples; 95% percentile bootstrap over questions, 10000 resamples, all samples of a "
    "question together"
)
ALL_EQUAL = (
    "Where all samples have the same value the bootstrap has no width; the interval is then what "
    "so many questions can exclude (at least 0.05^(1/questions) of all questions have that value)."
)
_RESAMPLES = 10_000
_BLOCK = 500
FEW = 10
"""Questions below which a percentile bootstrap is clearly too narrow."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` samples of `questions` questions; no bounds where they cannot be told."""

    mean: float
    low: float | None
    high: float | None
    n: int
    questions: int

    def as_json(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self)


def estimates(
    table: Mapping[str, Sequence[float | None]],
    questions: Sequence[str],
    bounds: Mapping[str, tuple[float, float]],
) -> dict[str, Estimate | None]:
    """Return the mean of each column, with its interval; None of a column without values.

    Whole questions are drawn with replacement (a cluster bootstrap, Davison and Hinkley 1997, 3.8),
    the same ones for all columns, and the mean is over the samples that were drawn. One question
    gives no interval.

    Args:
        table: column -> a value for each sample, None where it has none.
        questions: of each sample, the key of its question.
        bounds: column -> what values can be, for columns all of whose values are equal. Of `k`
            questions that all agree, at least a share of 0.05 ** (1 / k) of all questions does, at
            95%; the others may have any value. A column without bounds has no interval then.
    """
    names = list(table)
    if not names or not questions:
        return dict.fromkeys(names)
    keys, of = np.unique(np.asarray(questions), return_inverse=True)
    values = np.array([[np.nan if v is None else v for v in table[name]] for name in names]).T
    known = ~np.isnan(values)
    sums = np.zeros((len(keys), len(names)))
    counts = np.zeros((len(keys), len(names)))
    np.add.at(sums, of, np.nan_to_num(values))
    np.add.at(counts, of, known)
    drawn = _drawn(sums, counts)
    return {
        name: _estimate(values[known[:, at], at], counts[:, at], drawn[:, at], bounds.get(name))
        for at, name in enumerate(names)
    }


def _drawn(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of the resamples: shape (resamples, columns), NaN where one has no value."""
    clusters = len(sums)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(0, _RESAMPLES, _BLOCK):
        times = rng.multinomial(clusters, [1 / clusters] * clusters, size=_BLOCK)
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append((times @ sums) / (times @ counts))
    return np.concatenate(found)


def _estimate(
    values: NDArray[np.float64],
    counts: NDArray[np.float64],
    drawn: NDArray[np.float64],
    bounds: tuple[float, float] | None,
) -> Estimate | None:
    if not values.size:
        return None
    mean, clusters = float(values.mean()), int((counts > 0).sum())
    low: float | None = None
    high: float | None = None
    if clusters > 1 and np.ptp(values) > 0:
        low, high = (float(one) for one in np.nanpercentile(drawn, [2.5, 97.5]))
    elif clusters > 1 and bounds is not None:
        agreed = 0.05 ** (1 / clusters)
        low, high = (agreed * mean + (1 - agreed) * bound for bound in bounds)
    return Estimate(mean, low, high, int(values.size), clusters)
