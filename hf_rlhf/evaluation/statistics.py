"""Means, ratios and other statistics of rows, each with a 95% interval.

Every evaluation uses a percentile bootstrap over clusters (Davison and Hinkley 1997, 3.8). A
cluster has related rows, like the samples of a question, which are resampled as a whole. Several
training seeds are also resampled, crossed with the clusters. The draws depend only on the numbers
of seeds and clusters, so the same rows give the same interval.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.scores import Score

RESAMPLES = 10_000
FEW = 10
"""Clusters below which a percentile bootstrap is clearly too narrow."""
_BLOCK = 500
_CELLS = 2_000_000
_SEED = 0
_ROUNDING = 1e-12
"""Relative size below which a sum of values that cancel is 0."""

_KEPT_BYTES = 2**25
P = TypeVar("P", float, float | None)
Array = NDArray[np.float64]
Draw = NDArray[np.unsignedinteger[Any]]
Table = Sequence[Sequence[Score]]
"""Shape (seeds, rows): a value for each, or None."""


@dataclass(frozen=True)
class Interval:
    """A mean, or a ratio of sums, and its 95% percentile-bootstrap interval.

    If all values are equal, or only one cluster has values, the interval has zero width and is
    meaningless: tables print the reason instead.
    """

    mean: float
    low: float
    high: float
    n: int
    """Number of clusters with a value; without clusters, of rows."""
    values: int
    """Number of averaged values."""

    def as_json(self) -> dict[str, float | int]:
        """Return mean, low, high and n by name."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}

    @classmethod
    def of_mean(
        cls, values: Sequence[Score], clusters: Sequence[str] | None = None
    ) -> "Interval | None":
        """Return the mean of `values`, shape (rows,), with its interval; see `mean_intervals`."""
        return mean_intervals({"": [values]}, clusters)[""]

    @classmethod
    def of_ratio(cls, above: Table, below: Table, *, draw_seeds: bool = True) -> "Interval | None":
        """Return sum(above) / sum(below) over the cells of two tables, with its interval.

        Cells with None in either table are ignored. A resampled row has the values of all drawn
        seeds, which answered the same prompt; without `draw_seeds`, of all seeds. Returns None if
        nothing is left, or sum(below) is 0. Raises ValueError for tables of different shapes.
        """
        (tops, no_top), (bottoms, no_bottom) = _floats(above), _floats(below)
        if tops.ndim != 2 or tops.shape != bottoms.shape:
            raise ValueError(f"expected two tables of one shape, got {tops.shape}, {bottoms.shape}")
        missing = no_top | no_bottom
        tops[missing] = bottoms[missing] = 0.0
        if missing.all() or bottoms.sum() == 0:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            constant = [_is_constant((tops / bottoms)[~missing])]
        counts = (~missing).astype(np.float64)
        (interval,) = _ratios(tops[None], bottoms[None], constant, counts[None], draw_seeds)
        return interval

    @classmethod
    def of_statistic(cls, statistic: Callable[[Array], Array], rows: int) -> "Interval | None":
        """Return any statistic of `rows` rows with its interval; None if undefined.

        `statistic` takes row counts, shape (resamples, rows), and returns the statistic of each
        resample, shape (resamples,); NaN if undefined.
        """
        value = float(statistic(np.ones((1, rows)))[0])
        if math.isnan(value):
            return None
        low, high = _percentiles(lambda _, weights: statistic(weights)[:, None], 1, rows, True)[
            :, 0
        ]
        return cls(value, float(low), float(high), rows, rows)


def mean_intervals(
    columns: Mapping[str, Table], clusters: Sequence[str] | None = None
) -> dict[str, Interval | None]:
    """Return the mean of each column with its interval; None for a column without values.

    For a paired comparison pass the differences, row by row.

    Args:
        columns: name -> a value for each seed and row. None is ignored; a NaN makes the mean and
            the bounds of its column NaN.
        clusters: the cluster of each row; by default every row is its own.
    """
    tables = {name: _floats(table) for name, table in columns.items()}
    seeds, rows = next((values.shape for values, _ in tables.values()), (0, 0))
    if rows == 0:
        return dict.fromkeys(columns)
    # Sorted by key, so that the interval does not depend on the order of rows.
    keys, index = np.unique(np.arange(rows) if clusters is None else clusters, return_inverse=True)
    sums, counts = np.zeros((2, len(tables), seeds, len(keys)))
    for column, (values, missing) in enumerate(tables.values()):
        for seed in range(seeds):
            np.add.at(sums[column, seed], index, values[seed])
            np.add.at(counts[column, seed], index, ~missing[seed])
    constant = [_is_constant(values[~missing]) for values, missing in tables.values()]
    return dict(zip(columns, _ratios(sums, counts, constant), strict=True))


def _ratios(
    tops: Array,
    bottoms: Array,
    constant: Sequence[bool],
    counts: Array | None = None,
    draw_seeds: bool = True,
) -> list[Interval | None]:
    """Return sum(tops) / sum(bottoms) of each column; all shapes are (columns, seeds, clusters).

    `constant` marks columns with all values equal; `counts` are the numbers of values in each cell,
    by default `bottoms`.
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
    intervals: list[Interval | None] = []
    for column in range(columns):
        total = float(counts[column].sum())
        if total == 0:
            intervals.append(None)
            continue
        top = float(tops[column].sum())
        mean = (0.0 if abs(top) <= rounding[column] else top) / float(bottoms[column].sum())
        low, high = (mean, mean) if constant[column] else map(float, bounds[:, column])
        n = int(counts[column].any(axis=0).sum())
        intervals.append(Interval(mean, low, high, n, int(total)))
    return intervals


def _percentiles(
    statistics: Callable[[Array, Array], Array], seeds: int, clusters: int, draw_seeds: bool
) -> Array:
    """Return the 2.5% and 97.5% percentiles over resamples, shape (2, columns).

    `statistics` takes the counts of each seed and each cluster, shapes (resamples, seeds) and
    (resamples, clusters), and returns shape (resamples, columns).
    """
    draws = _draws(seeds, clusters, draw_seeds)
    values: Array = np.concatenate(
        [statistics(seed.astype(float), cluster.astype(float)) for seed, cluster in draws]
    )
    values[~np.isfinite(values)] = np.nan
    with warnings.catch_warnings():
        # A column without any value has no percentiles.
        warnings.filterwarnings("ignore", message="All-NaN slice")
        bounds: Array = np.nanpercentile(values, [2.5, 97.5], axis=0)
    return bounds


def _draws(seeds: int, clusters: int, draw_seeds: bool) -> Iterable[tuple[Draw, Draw]]:
    """Return how often each seed and each cluster is drawn, by blocks of resamples."""
    # Smaller blocks for many clusters, so that memory does not grow with their number.
    block = min(_BLOCK, max(1, _CELLS // clusters)) if seeds == 1 else _BLOCK
    sizes = seeds, clusters, draw_seeds, RESAMPLES, block
    kept = RESAMPLES * (seeds + clusters) <= _KEPT_BYTES
    return _kept_draws(*sizes) if kept else _drawn(*sizes)


def _drawn(
    seeds: int, clusters: int, draw_seeds: bool, resamples: int, block: int
) -> Iterator[tuple[Draw, Draw]]:
    rng = np.random.default_rng(_SEED)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        by_seed = _weights(rng, seeds, size) if draw_seeds else np.ones((size, seeds), np.uint8)
        yield by_seed, _weights(rng, clusters, size)


@lru_cache(maxsize=4)
def _kept_draws(*sizes: int) -> list[tuple[Draw, Draw]]:
    """Return the cached draws of a size, which every interval shares."""
    return list(_drawn(*sizes))  # type: ignore[arg-type]


def _weights(rng: np.random.Generator, count: int, size: int) -> Draw:
    """Return how often each of `count` is drawn, in `size` draws of `count` with replacement."""
    weights = rng.multinomial(count, [1 / count] * count, size=size)
    return weights.astype(np.min_scalar_type(weights.max()))


def _floats(table: Table) -> tuple[Array, NDArray[np.bool_]]:
    """Return a table's values with 0 for None, and the mask of None."""
    values = np.array([[0.0 if value is None else value for value in row] for row in table], float)
    return values, np.array([[value is None for value in row] for row in table], bool)


def _is_constant(values: Array) -> bool:
    return values.size > 0 and bool((values == values[0]).all())


def holm(p_values: Sequence[P]) -> list[P]:
    """Return p values with Holm's correction (1979); None stays None."""
    adjusted, highest = list(p_values), 0.0
    tested = [at for at, p in enumerate(p_values) if p is not None]
    for rank, at in enumerate(sorted(tested, key=lambda at: p_values[at] or 0.0)):
        highest = min(max(highest, (len(tested) - rank) * (p_values[at] or 0.0)), 1.0)
        adjusted[at] = highest
    return adjusted
