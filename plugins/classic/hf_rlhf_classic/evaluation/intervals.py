"""Means and ratios over training seeds and prompts, with hierarchical-bootstrap intervals."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.evaluation import Interval

METHOD = "95% percentile bootstrap over prompts, 10000 resamples; a prompt's completions averaged"
OF_SEEDS = (
    "95% hierarchical percentile bootstrap, 10000 resamples: checkpoints of one name are drawn "
    "first (seeds), then prompts, the same for all; a prompt's completions averaged"
)
_BLOCK = 500

Table = Sequence[Sequence[float | None]]
"""Shape (seeds, prompts): one value for each, None where there is none."""


def mean(values: Table, *, resamples: int = 10_000, seed: int = 0) -> Interval | None:
    """Return the mean of a table with its interval, or None of a table without values."""
    ones = [[None if one is None else 1.0 for one in row] for row in values]
    return ratio(values, ones, resamples=resamples, seed=seed)


def ratio(above: Table, below: Table, *, resamples: int = 10_000, seed: int = 0) -> Interval | None:
    """Return sum(above) / sum(below) over a table's cells, with its interval.

    A cell of which either is None is left out. Seeds and prompts are crossed: a resample draws
    seeds and prompts with replacement, and a prompt stands in it with all of the drawn seeds'
    values, since they answered the same one. With one seed this is the bootstrap over prompts
    (Efron 1979). With few seeds a bootstrap over them is too narrow;
    `hf_rlhf.evaluation.statistics.crossed_mean`
    is for that. `n` counts the prompts. Returns None where nothing is left or sum(below) is 0.
    """
    tops, bottoms = _cells(above, below)
    known = ~np.isnan(tops)
    count = int(known.any(axis=0).sum())
    tops, bottoms = np.nan_to_num(tops), np.nan_to_num(bottoms)
    if count == 0 or bottoms.sum() == 0:
        return None
    seeds, prompts = tops.shape
    rng = np.random.default_rng(seed)
    found = []
    for start in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - start)
        # How often each seed and each prompt was drawn: shapes (size, seeds), (size, prompts).
        by_seed = rng.multinomial(seeds, [1 / seeds] * seeds, size=size)
        by_prompt = rng.multinomial(prompts, [1 / prompts] * prompts, size=size)
        top = ((by_seed @ tops) * by_prompt).sum(axis=1)
        bottom = ((by_seed @ bottoms) * by_prompt).sum(axis=1)
        # A resample may hold nothing but cells that are left out.
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(top / bottom)
    drawn = np.concatenate(found)
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5])
    return Interval(float(tops.sum() / bottoms.sum()), float(low), float(high), count)


def _cells(above: Table, below: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both as arrays, NaN in both wherever one has no value."""
    tops = np.array([[np.nan if one is None else one for one in row] for row in above])
    bottoms = np.array([[np.nan if one is None else one for one in row] for row in below])
    if tops.ndim != 2 or tops.shape != bottoms.shape:
        raise ValueError(f"expected two tables of one shape, got {tops.shape}, {bottoms.shape}")
    missing = np.isnan(tops) | np.isnan(bottoms)
    tops[missing] = bottoms[missing] = np.nan
    return tops, bottoms
