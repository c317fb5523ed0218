"""The result of a check of a reward, and the statistics of the checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.evaluation import Interval
from hf_rlhf.storage import Estimate, ReportCheck
from hf_rlhf_lab.validation.gold import Array, Scored

Verdict = Literal["pass", "warn", "fail", "not measurable"]
"""A warning does not change the exit status."""

ALPHA = 0.05
"""Significance level of several hypotheses together, after Holm's adjustment."""


def checked(
    name: str,
    verdict: Verdict,
    summary: str,
    measures: Mapping[str, Interval | Estimate | None] = MappingProxyType({}),
    details: Mapping[str, Any] = MappingProxyType({}),
) -> ReportCheck:
    """Return the result of a check.

    Args:
        name, verdict: of the check.
        summary: a sentence with the decisive numbers.
        measures: values by name; None if undefined.
        details: JSON for the plot and other programs.
    """
    values = {
        key: each.as_json() if isinstance(each, Interval) else each
        for key, each in measures.items()
    }
    content = {"name": name, "verdict": verdict, "summary": summary, "measures": values}
    return ReportCheck.model_validate({**content, "details": dict(details)})


def not_measurable(name: str, why: str, **measures: Interval | None) -> ReportCheck:
    """Return a check without a result, with the reason."""
    return checked(name, "not measurable", why, measures)


def degenerate(scored: Scored) -> str:
    """Return why these scores are useless, or an empty string."""
    valid = scored.scores[scored.valid]
    if not len(valid):
        return "the reward scored no response"
    if np.ptp(valid) == 0:
        return f"the reward gives every response {valid[0]:g}"
    if scored.spread < np.finfo(np.float32).tiny:
        return "the scores differ by less than float32, in which trainers compute, can hold"
    if len(np.unique(scored.gold.grades)) < 2:
        return f"every response has the same gold grade, {scored.gold.grades[0]:g}"
    if not len(scored.pairs):
        return "no prompt has two scored responses with different gold grades"
    if len(set(scored.clusters)) == 1:
        return "all graded responses are to one prompt, which gives no interval"
    return ""


def sums_by_cluster(values: Array, clusters: Sequence[str]) -> Array:
    """Return the sum of the values of each cluster, for sign-flip tests by cluster."""
    _, index = np.unique(clusters, return_inverse=True)
    return np.asarray(np.bincount(index, values), dtype=np.float64)


def rank_correlation(
    x: Array, y: Array, groups: NDArray[np.int64], control: Array | None = None
) -> Interval | None:
    """Return Spearman's rank correlation with its 95% interval, resampling whole groups.

    Args:
        x, y: shape (rows,); ties share their mean rank.
        groups: the group of each row.
        control: held constant by rank (a partial correlation, Kendall 1942).

    Returns:
        None if `x` or `y` is constant.
    """
    numbers, index = np.unique(groups, return_inverse=True)
    columns = [_Ranks.of(values) for values in (x, y)]
    controlled = _Ranks.of(control) if control is not None and np.ptp(control) > 0 else None

    def statistic(by_group: Array) -> Array:
        weights = by_group[:, index]
        first, second = (column.centred(weights) for column in columns)
        xy = _correlations(first, second, weights)
        if controlled is None:
            return xy
        third = controlled.centred(weights)
        xz, yz = (_correlations(each, third, weights) for each in (first, second))
        scale = np.sqrt((1 - xz**2) * (1 - yz**2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(scale > 1e-9, (xy - xz * yz) / scale, np.nan))

    rho = Interval.of_statistic(statistic, len(numbers))
    return rho and replace(rho, values=len(x))


def correlation_loss(
    x: Array, without: Array, y: Array, groups: NDArray[np.int64]
) -> Interval | None:
    """Return how much larger the rank correlation with `y` is for `x` than for `without`.

    The interval is paired: each resample of whole groups gives both correlations. A constant has
    correlation 0. Returns None if `x` or `y` is constant.
    """
    numbers, index = np.unique(groups, return_inverse=True)
    ranks = [_Ranks.of(values) for values in (x, without, y)]

    def statistic(by_group: Array) -> Array:
        weights = by_group[:, index]
        first, second, third = (column.centred(weights) for column in ranks)
        rest = np.nan_to_num(_correlations(second, third, weights))
        return np.asarray(_correlations(first, third, weights) - rest)

    return Interval.of_statistic(statistic, len(numbers))


@dataclass(frozen=True)
class _Ranks:
    """The order of some values, which gives the ranks of any resample without sorting."""

    block: NDArray[np.int64]
    """For each row, the index of its value among the distinct values, in increasing order."""
    starts: NDArray[np.int64]
    order: NDArray[np.int64]

    @classmethod
    def of(cls, values: Array) -> "_Ranks":
        _, block = np.unique(values, return_inverse=True)
        order = np.argsort(block, kind="stable")
        starts = np.flatnonzero(np.diff(block[order], prepend=-1))
        return cls(block, starts, order)

    def centred(self, weights: Array) -> Array:
        """Return the ranks minus their mean; shapes (resamples, rows)."""
        blocks = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        ranks = (np.cumsum(blocks, axis=1) - (blocks - 1) / 2)[:, self.block]
        mean = (weights * ranks).sum(axis=1) / weights.sum(axis=1)
        return np.asarray(ranks - mean[:, None])


def _correlations(x: Array, y: Array, weights: Array) -> Array:
    """Return the correlation in each resample, NaN if `x` or `y` is constant."""
    xy, xx, yy = ((weights * a * b).sum(axis=1) for a, b in ((x, y), (x, x), (y, y)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where((xx > 0) & (yy > 0), xy / np.sqrt(xx * yy), np.nan))
