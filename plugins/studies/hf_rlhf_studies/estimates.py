"""Means and paired differences over seeds and rows, with intervals of both kinds, and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.evaluation import Interval, crossed_mean, holm, ratio_interval

ALPHA = 0.05
Values = Mapping[int, Sequence[float | None]]
"""By seed, a value for each held-out row; None where a row could not be scored."""
Decision = Literal["intervals", "signs"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and rows, or a mean of paired differences."""

    mean: float
    low: float
    high: float
    """95%, cluster bootstrap over rows, and over seeds where those are drawn too."""
    t_low: float
    t_high: float
    """95%, t with seeds and rows as crossed random effects."""
    p: float | None
    """Two-sided, of that t; None where nothing varies."""
    by_seed: Mapping[int, float]
    clusters: int
    left_out: int = 0
    """Rows that some seed could not score: the t interval is without them."""

    @property
    def constant(self) -> bool:
        """Whether all values are alike, so that no interval says anything."""
        return self.low == self.high

    @property
    def spread(self) -> float:
        """How far the seeds' means are apart."""
        return max(self.by_seed.values()) - min(self.by_seed.values())

    def negative(self) -> "Estimate":
        """Return the estimate of the negative quantity."""
        by_seed = {seed: -value for seed, value in self.by_seed.items()}
        ends = (-self.mean, -self.high, -self.low, -self.t_high, -self.t_low, self.p)
        return Estimate(*ends, by_seed, self.clusters, self.left_out)


def estimate(
    values: Values,
    clusters: Mapping[int, Sequence[str]] | None = None,
    *,
    shared: bool = True,
    draw_seeds: bool = True,
) -> Estimate | None:
    """Return the mean of values with its intervals, or None where there is no value.

    Args:
        values: of each seed.
        clusters: of each seed, the cluster of each row; rows of one are drawn together. None:
            each row is its own.
        shared: whether all seeds were measured on the same rows. Else the rows of each seed are
            its own clusters, and the t interval is over the seeds' means.
        draw_seeds: whether the bootstrap draws seeds too, if they share rows.
    """
    sums, counts = _by_cluster(values, clusters)
    if counts.sum() == 0:
        return None
    with np.errstate(invalid="ignore"):
        cells = sums / counts
    known = {seed: float(sums[at].sum() / counts[at].sum()) for at, seed in enumerate(values)
             if counts[at].sum()}  # fmt: skip
    whole = ~np.isnan(cells).any(axis=0)
    if shared:
        drawn = _interval(sums, counts, draw_seeds)
        table = cells[:, whole] if whole.any() else np.array([[v] for v in known.values()])
    else:
        drawn = _interval(sums.reshape(1, -1), counts.reshape(1, -1), False)
        table = np.array([[value] for value in known.values()])
    crossed = crossed_mean(table)
    return Estimate(
        mean=drawn.mean,
        low=drawn.low,
        high=drawn.high,
        t_low=crossed.low,
        t_high=crossed.high,
        p=crossed.p,
        by_seed=known,
        clusters=int((counts.sum(axis=0) > 0).sum()) if shared else int((counts > 0).sum()),
        left_out=int((~whole).sum()) if shared else 0,
    )


def _by_cluster(
    values: Values, clusters: Mapping[int, Sequence[str]] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums and counts of known values, each of shape (seeds, clusters)."""
    size = max((len(row) for row in values.values()), default=0)
    places = {
        seed: clusters[seed] if clusters else [str(at) for at in range(len(row))]
        for seed, row in values.items()
    }
    names = sorted({name for row in places.values() for name in row}) if clusters else None
    order = {name: at for at, name in enumerate(names or map(str, range(size)))}
    sums, counts = np.zeros((len(values), len(order))), np.zeros((len(values), len(order)))
    for at, (seed, row) in enumerate(values.items()):
        for name, value in zip(places[seed], row, strict=True):
            if value is not None:
                sums[at, order[name]] += value
                counts[at, order[name]] += 1
    return sums, counts


def _interval(sums: NDArray[np.float64], counts: NDArray[np.float64], draw_seeds: bool) -> Interval:
    """Return the interval of the core's bootstrap: seeds and clusters drawn, crossed."""
    above = [_cells(*rows) for rows in zip(sums, counts, strict=True)]
    below = [_cells(row, row) for row in counts]
    interval = ratio_interval(above, below, draw_seeds=draw_seeds)
    assert interval is not None  # there is a value
    return interval


def _cells(values: NDArray[np.float64], counts: NDArray[np.float64]) -> list[float | None]:
    """Return a row of a table, None where nothing was counted."""
    return [float(v) if n else None for v, n in zip(values, counts, strict=True)]


def paired(values: Values, other: Values) -> dict[int, list[float | None]]:
    """Return one minus other, row by row, for the seeds that both have."""
    return {
        seed: [None if a is None or b is None else a - b
               for a, b in zip(values[seed], other[seed], strict=True)]
        for seed in values
        if seed in other
    }  # fmt: skip


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return p values adjusted for their number (Holm 1979); None where nothing varies."""
    result = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(result) for p in p_values]


def verdict(
    difference: Estimate, predicted: str, p_holm: float | None, decision: Decision, spread: float
) -> str:
    """Return how a difference stands to the direction that was predicted.

    Args:
        difference: of the two conditions.
        predicted: `higher` or `lower`.
        p_holm: its p, adjusted for the number of questions.
        decision: `intervals`: a plain yes needs both intervals beyond 0 and `p_holm` below 0.05.
            `signs`: it needs the bootstrap's interval beyond 0, the same sign in every seed, and
            a difference larger than `spread`.
        spread: how far the seeds of either condition are apart.
    """
    result = difference if predicted == "higher" else difference.negative()
    if result.low <= 0 or result.constant:
        if result.high < 0:
            return "no: the other way"
        return "not shown"
    if decision == "signs":
        if any(value <= 0 for value in result.by_seed.values()):
            return "not shown: a seed differs"
        return "yes" if result.mean >= spread else "not shown: within the spread of seeds"
    if result.t_low <= 0:
        return "by the bootstrap only"
    return "yes" if p_holm is not None and p_holm < ALPHA else "alone, not among so many"
