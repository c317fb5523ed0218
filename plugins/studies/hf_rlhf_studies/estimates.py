"""Means and paired differences over seeds and rows, with intervals of both kinds, and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from hf_rlhf.evaluation import Interval
from hf_rlhf_studies.crossed import TInterval, crossed_interval

ALPHA = 0.05
Values = Mapping[int, Sequence[float | None]]
"""By seed, a value for each held-out row; None where a row could not be scored."""
Decision = Literal["intervals", "signs"]


@dataclass(frozen=True, kw_only=True)
class Estimate(Interval):
    """A mean over seeds and rows, or a mean of paired differences, with two intervals.

    `low` and `high` are a cluster bootstrap over rows, and over seeds where they are drawn too.
    """

    t: TInterval
    """With seeds and rows as crossed random effects."""
    by_seed: Mapping[int, float]
    left_out: int = 0
    """Rows that some seed could not score: the t interval is without them."""

    @property
    def constant(self) -> bool:
        """Whether all values are equal, so that no interval says anything."""
        return self.low == self.high

    @property
    def spread(self) -> float:
        """The largest difference between the means of two seeds."""
        return max(self.by_seed.values()) - min(self.by_seed.values())

    def smallest_shown(self, questions: int) -> float | None:
        """Return the smallest mean whose p, adjusted for so many questions, is below 0.05.

        Whatever the p of the other questions; None where nothing varies.
        """
        if self.t.p is None:
            return None
        shares = [1 - ALPHA / (2 * questions), 1 - ALPHA / 2]
        wanted, width = stdtrit(self.t.freedom, shares)
        return (self.t.high - self.t.low) / 2 * float(wanted / width)

    def negative(self) -> "Estimate":
        """Return the estimate of the negative quantity."""
        by_seed = {seed: -value for seed, value in self.by_seed.items()}
        t = self.t._replace(low=-self.t.high, high=-self.t.low)
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low, t=t, by_seed=by_seed)


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
        clusters: of each seed, the cluster of each row; its rows are drawn together. None:
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
    by_seed = {
        seed: float(row.sum() / count.sum())
        for seed, row, count in zip(values, sums, counts, strict=True)
        if count.sum()
    }
    complete = ~np.isnan(cells).any(axis=0) & shared
    table = cells[:, complete] if complete.any() else np.array([[v] for v in by_seed.values()])
    if not shared:
        sums, counts, draw_seeds = sums.reshape(1, -1), counts.reshape(1, -1), False
    above, below = _with_gaps(sums, counts), _with_gaps(counts, counts)
    drawn = Interval.of_ratio(above, below, draw_seeds=draw_seeds)
    assert drawn is not None  # there is a value
    left_out = int((~complete).sum()) if shared else 0
    return Estimate(**vars(drawn), t=crossed_interval(table), by_seed=by_seed, left_out=left_out)


def _by_cluster(
    values: Values, clusters: Mapping[int, Sequence[str]] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return sums and counts of the values, each of shape (seeds, clusters)."""
    names = clusters or {seed: list(map(str, range(len(row)))) for seed, row in values.items()}
    # Rows that are their own clusters stay in their order.
    distinct = dict.fromkeys(name for seed in values for name in names[seed])
    order = {name: at for at, name in enumerate(sorted(distinct) if clusters else distinct)}
    sums, counts = np.zeros((2, len(values), len(order)))
    for at, (seed, row) in enumerate(values.items()):
        for name, value in zip(names[seed], row, strict=True):
            if value is not None:
                sums[at, order[name]] += value
                counts[at, order[name]] += 1
    return sums, counts


def _with_gaps(
    values: NDArray[np.float64], counts: NDArray[np.float64]
) -> list[list[float | None]]:
    """Return a table with None where nothing was counted."""
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return [[v if n else None for v, n in zip(*rows, strict=True)] for rows in pairs]


def paired(values: Values, other: Values) -> dict[int, list[float | None]]:
    """Return the difference, row by row, for the seeds that both have."""
    seeds = [seed for seed in values if seed in other]
    pairs = {seed: zip(values[seed], other[seed], strict=True) for seed in seeds}
    return {
        seed: [None if a is None or b is None else a - b for a, b in rows]
        for seed, rows in pairs.items()
    }


def verdict(
    difference: Estimate, predicted: str, p_holm: float | None, decision: Decision, spread: float
) -> str:
    """Return whether a difference is as predicted.

    A difference that is the same in every row of three seeds or more has no variance to test: it
    is reported as such, and is no plain yes.

    Args:
        difference: of the two conditions.
        predicted: `higher` or `lower`.
        p_holm: its p, adjusted for the number of questions.
        decision: `intervals`: a plain yes needs both intervals beyond 0 and `p_holm` below 0.05.
            `signs`: it needs the bootstrap's interval beyond 0, the same sign in every seed, and
            a difference larger than `spread`.
        spread: the largest difference between the seeds of either condition.
    """
    gain = difference if predicted == "higher" else difference.negative()
    if gain.high < 0:
        other = "lower" if predicted == "higher" else "higher"
        shown = verdict(difference, other, p_holm, decision, spread)
        is_shown = shown.startswith(("yes", "as predicted"))
        return "no: the opposite" if is_shown else f"no: the opposite, {shown}"
    if gain.constant and gain.t.p is None and gain.mean > 0 and len(gain.by_seed) >= 3:
        return "as predicted and the same everywhere: nothing varies, no test"
    if gain.low <= 0 or gain.constant:
        return "not shown"
    if decision == "signs":
        if any(value <= 0 for value in gain.by_seed.values()):
            return "not shown: a seed differs"
        return "yes" if gain.mean >= spread else "not shown: within the spread of seeds"
    if gain.t.low <= 0:
        return "by the bootstrap only"
    return "yes" if p_holm is not None and p_holm < ALPHA else "not after Holm's adjustment"
