"""Means, ratios and other statistics of rows, each with a 95% interval.

One method for every evaluation: a percentile bootstrap over clusters (Davison and Hinkley 1997,
3.8). A cluster holds the rows that belong together, such as the samples of one question; clusters
are drawn whole. Of several training seeds, seeds are drawn too, crossed with the clusters. The
draws depend on the number of seeds and clusters alone, so the same rows give the same interval.
For a claim about a training method from few seeds, use `crossed_mean`.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_rlhf.contracts import Score

RESAMPLES = 10_000
FEW = 10
"""Clusters below which a percentile bootstrap is clearly too narrow."""
_BLOCK = 500
_CELLS = 2_000_000
_SEED = 0
_NORMAL = 10_000.0
"""Degrees of freedom from which on t differs from the normal distribution in the fifth digit."""
_ROUNDING = 1e-12
"""Of a variance, or of the values of a sum: what remains of it in floats where it is 0."""

Array = NDArray[np.float64]
Table = Sequence[Sequence[Score]]
"""Shape (seeds, rows): a value for each, None where there is none."""


@dataclass(frozen=True)
class Interval:
    """A mean, or a ratio of sums, and its 95% percentile-bootstrap interval.

    Where all values are equal, or only one cluster has any, the interval has no width and says
    nothing: tables print the reason in its place.
    """

    mean: float
    low: float
    high: float
    n: int
    """Clusters that have a value; rows, where each is its own cluster."""
    values: int
    """Values that the mean is of."""

    def as_json(self) -> dict[str, float | int]:
        """Return mean, low, high and n by name."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def mean_interval(
    values: Sequence[Score], clusters: Sequence[str] | None = None
) -> Interval | None:
    """Return the mean of `values`, shape (rows,), with its interval; see `mean_intervals`."""
    return mean_intervals({"": values}, clusters)[""]


def mean_intervals(
    columns: Mapping[str, Sequence[Score]], clusters: Sequence[str] | None = None
) -> dict[str, Interval | None]:
    """Return the mean of each column with its interval; None for a column without values.

    For a paired comparison pass the differences, row by row.

    Args:
        columns: name -> a value for each row, None where the row has none. A value that is not a
            number is not left out: the mean and the bounds of its column are NaN, too.
        clusters: the cluster of each row; by default every row is its own.
    """
    names, rows = list(columns), len(next(iter(columns.values()), ()))
    if rows == 0:
        return dict.fromkeys(names)
    # In the order of their keys, so that the interval does not depend on the order of rows.
    keys, index = np.unique(np.arange(rows) if clusters is None else clusters, return_inverse=True)
    sums, counts = np.zeros((2, len(names), 1, len(keys)))
    constant = []
    for column, name in enumerate(names):
        values, missing = _floats([columns[name]])
        np.add.at(sums[column, 0], index, values[0])
        np.add.at(counts[column, 0], index, ~missing[0])
        constant.append(_is_constant(values[~missing]))
    return dict(zip(names, _ratios(sums, counts, constant), strict=True))


def table_interval(values: Table) -> Interval | None:
    """Return the mean of a table of seeds and rows with its interval; see `ratio_interval`."""
    return ratio_interval(values, [[None if v is None else 1.0 for v in row] for row in values])


def ratio_interval(above: Table, below: Table, *, draw_seeds: bool = True) -> Interval | None:
    """Return sum(above) / sum(below) over the cells of two tables, with its interval.

    A cell of which either is None is left out. A row stands in a resample with the values of all
    the seeds that were drawn, since they answered the same prompt; without `draw_seeds`, with those
    of all seeds. Returns None where nothing is left, or sum(below) is 0. Raises ValueError for
    tables of different shapes.
    """
    (tops, no_top), (bottoms, no_bottom) = _floats(above), _floats(below)
    if tops.ndim != 2 or tops.shape != bottoms.shape:
        raise ValueError(f"expected two tables of one shape, got {tops.shape}, {bottoms.shape}")
    missing = no_top | no_bottom
    tops[missing] = bottoms[missing] = 0.0
    if missing.all() or bottoms.sum() == 0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        cells = (tops / bottoms)[~missing]
    counts = (~missing).astype(np.float64)
    constant = [_is_constant(cells)]
    (interval,) = _ratios(tops[None], bottoms[None], constant, counts[None], draw_seeds)
    return interval


def statistic_interval(statistic: Callable[[Array], Array], rows: int) -> Interval | None:
    """Return any statistic of `rows` rows with its interval; None where it is not defined.

    Args:
        statistic: from how often each row counts, shape (resamples, rows), to the statistic of
            each resample, shape (resamples,); NaN where it is not defined.
        rows: how many there are.
    """
    value = float(statistic(np.ones((1, rows)))[0])
    if math.isnan(value):
        return None
    low, high = _percentiles(lambda _, weights: statistic(weights)[:, None], 1, rows, True)[:, 0]
    return Interval(value, float(low), float(high), rows, rows)


def _ratios(
    tops: Array,
    bottoms: Array,
    constant: Sequence[bool],
    counts: Array | None = None,
    draw_seeds: bool = True,
) -> list[Interval | None]:
    """Return sum(tops) / sum(bottoms) of each column; all shapes are (columns, seeds, clusters).

    `constant` tells of each column whether all its values are equal, when there is nothing to
    draw; `counts` are the values in each cell, `bottoms` by default.
    """
    counts = bottoms if counts is None else counts
    columns, seeds, clusters = tops.shape
    size = np.abs(tops).sum(axis=(1, 2))
    rounding = np.where(np.isfinite(size), size, 0.0) * _ROUNDING

    def ratios(by_seed: Array, by_cluster: Array) -> Array:
        # A resample may hold nothing but cells without a value, and a value may be infinite.
        with np.errstate(divide="ignore", invalid="ignore"):
            top, bottom = (
                (
                    (by_cluster @ sums.reshape(-1, clusters).T).reshape(-1, columns, seeds)
                    * by_seed[:, None, :]
                ).sum(axis=-1)
                for sums in (tops, bottoms)
            )
            # Values that cancel out are 0: a bound of -1e-19 would exclude it.
            return np.asarray(np.where(np.abs(top) <= rounding, 0.0, top) / bottom)

    bounds = _percentiles(ratios, seeds, clusters, draw_seeds)
    result: list[Interval | None] = []
    for column in range(columns):
        total = float(counts[column].sum())
        if total == 0:
            result.append(None)
            continue
        top = float(tops[column].sum())
        mean = (0.0 if abs(top) <= rounding[column] else top) / float(bottoms[column].sum())
        low, high = (mean, mean) if constant[column] else map(float, bounds[:, column])
        n = int(counts[column].any(axis=0).sum())
        result.append(Interval(mean, low, high, n, int(total)))
    return result


def _percentiles(
    statistics: Callable[[Array, Array], Array], seeds: int, clusters: int, draw_seeds: bool
) -> Array:
    """Return the 2.5% and 97.5% percentiles over resamples, shape (2, columns).

    `statistics` takes how often each seed and each cluster was drawn, shapes (resamples, seeds)
    and (resamples, clusters), and returns shape (resamples, columns).
    """
    rng = np.random.default_rng(_SEED)
    # Smaller blocks for many clusters, so that memory does not grow with their number.
    block = min(_BLOCK, max(1, _CELLS // clusters)) if seeds == 1 else _BLOCK
    drawn = []
    for start in range(0, RESAMPLES, block):
        size = min(block, RESAMPLES - start)
        by_seed = _weights(rng, seeds, size) if draw_seeds else np.ones((size, seeds))
        drawn.append(statistics(by_seed, _weights(rng, clusters, size)))
    values = np.concatenate(drawn)
    values[~np.isfinite(values)] = np.nan
    with warnings.catch_warnings():
        # A column without any value has no percentiles.
        warnings.filterwarnings("ignore", message="All-NaN slice")
        return np.nanpercentile(values, [2.5, 97.5], axis=0)


def _weights(rng: np.random.Generator, count: int, size: int) -> Array:
    """Return how often each of `count` is drawn, in `size` draws of `count` with replacement."""
    return rng.multinomial(count, [1 / count] * count, size=size).astype(np.float64)


def _floats(table: Table) -> tuple[Array, NDArray[np.bool_]]:
    """Return a table's values, 0 where there is none, and where that is."""
    values = np.array([[0.0 if value is None else value for value in row] for row in table], float)
    return values, np.array([[value is None for value in row] for row in table], bool)


def _is_constant(values: Array) -> bool:
    return values.size > 0 and bool((values == values[0]).all())


@dataclass(frozen=True)
class CrossedInterval:
    """A mean over `seeds` training runs that were all measured on the same `rows`."""

    mean: float
    low: float
    high: float
    p: float | None
    """Two-sided, of a true mean of 0; None where nothing varies."""
    seeds: int
    rows: int

    def as_json(self) -> dict[str, float | int | None]:
        """Return the numbers by name."""
        return asdict(self)


def crossed_mean(values: ArrayLike, *, confidence: float = 0.95) -> CrossedInterval:
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
    seeds, rows = table.shape
    mean = float(table.mean())
    variance, freedom = _variance_of_mean(table)
    if variance <= 0 or freedom < 1:
        return CrossedInterval(mean, mean, mean, None, seeds, rows)
    error = math.sqrt(variance)
    half = t_quantile((1 + confidence) / 2, freedom) * error
    p = 2 * (1 - t_probability(abs(mean) / error, freedom))
    return CrossedInterval(mean, mean - half, mean + half, p, seeds, rows)


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


def holm(p_values: Sequence[float]) -> list[float]:
    """Return `p_values` adjusted for being many, in their order (Holm 1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        highest = max(highest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(highest, 1.0)
    return adjusted


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
