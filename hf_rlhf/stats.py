"""Means with intervals, for numbers that go on a card."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values and its percentile-bootstrap interval (Efron 1979)."""

    mean: float
    low: float
    high: float
    n: int

    def as_json(self) -> dict[str, float | int]:
        """Return the four numbers by name."""
        return asdict(self)


def bootstrap_mean(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the mean of `values`, shape (n,), with a percentile-bootstrap interval.

    For a paired comparison pass the per-row differences. One value gives an interval of no
    width, which says nothing: report `n` beside it. Raises ValueError without values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise ValueError("an interval needs at least one value")
    rng = np.random.default_rng(seed)
    # Row by row, so that memory stays at one resample however many values there are.
    means = np.array(
        [sample[rng.integers(0, sample.size, sample.size)].mean() for _ in range(resamples)]
    )
    tail = (1 - confidence) / 2 * 100
    low, high = np.percentile(means, [tail, 100 - tail])
    return Interval(float(sample.mean()), float(low), float(high), int(sample.size))
