"""Intervals: against a known distribution, and their edge cases."""

import math

import numpy as np
import pytest

from hf_rlhf.evaluation.statistics import bootstrap_mean, crossed_mean


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        interval = bootstrap_mean(rng.normal(2.0, 1.0, 50), resamples=400, seed=trial)
        covered += interval.low <= 2.0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.mark.parametrize(("confidence", "low", "high"), [(0.95, 18, 32), (0.9, 19, 31)])
def test_the_interval_leaves_out_as_much_on_either_side(confidence, low, high):
    """Of half ones, the resampled sum is Binomial(50, 1/2), whose quantiles are in any table."""
    interval = bootstrap_mean([0.0, 1.0] * 25, confidence=confidence)
    assert (interval.low, interval.high) == (low / 50, high / 50)


@pytest.mark.parametrize("table", [[[1, 2, 3, 4, 5]], [[1], [2], [3], [4], [5]]])
def test_of_one_seed_or_one_row_it_is_students_interval(table):
    """t(0.975, 4) = 2.7764, and a mean of 3 with the error sqrt(0.5) has p = 0.01324."""
    found = crossed_mean(table)
    half = 2.7764 * math.sqrt(0.5)
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half), abs=1e-3)
    assert found.p == pytest.approx(0.01324, abs=1e-4)
    narrower = crossed_mean(table, confidence=0.9)
    assert (narrower.low, narrower.high) == pytest.approx(
        (3 - 2.1318 * math.sqrt(0.5), 3 + 2.1318 * math.sqrt(0.5)), abs=1e-3
    )


def test_same_seed_same_interval_and_the_mean_is_plain():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    first, second = bootstrap_mean(values), bootstrap_mean(values)
    assert first == second
    assert first.mean == 0.6
    assert first.low < 0.6 < first.high
    assert first.n == 5


def test_one_value_has_no_width_and_none_is_refused():
    assert bootstrap_mean([3.0]).as_json() == {"mean": 3.0, "low": 3.0, "high": 3.0, "n": 1}
    with pytest.raises(ValueError, match="at least one value"):
        bootstrap_mean([])
