"""The crossed t interval: against Student's own, and a known distribution."""

import math

import numpy as np
import pytest

from hf_rlhf.evaluation import holm
from hf_rlhf_studies.crossed import crossed_interval


@pytest.mark.parametrize("table", [[[1, 2, 3, 4, 5]], [[1], [2], [3], [4], [5]]])
def test_of_one_seed_or_one_row_it_is_students_interval(table):
    """t(0.975, 4) = 2.7764, and a mean of 3 with the error sqrt(0.5) has p = 0.01324."""
    actual = crossed_interval(table)
    half = 2.7764 * math.sqrt(0.5)
    assert (actual.low, actual.high) == pytest.approx((3 - half, 3 + half), abs=1e-3)
    assert actual.p == pytest.approx(0.01324, abs=1e-4)


@pytest.mark.parametrize("spread", [(0.3, 0.3, 1.0), (1.0, 0.1, 0.1)])
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_interval_covers_the_mean_over_other_seeds_and_rows(spread, seeds):
    rng = np.random.default_rng(seeds)
    of_seed, of_row, of_both = spread
    covered = 0
    for _ in range(80):
        values = 2.0 + of_seed * rng.normal(size=(seeds, 1)) + of_row * rng.normal(size=(1, 40))
        interval = crossed_interval(values + of_both * rng.normal(size=(seeds, 40)))
        covered += interval.low <= 2.0 <= interval.high
    # 0.95 give or take 3 standard errors, and what Satterthwaite's approximation lacks.
    assert 0.86 <= covered / 80 <= 1.0


def test_one_seed_is_over_rows_and_one_value_has_no_width():
    values = np.random.default_rng(0).normal(size=(1, 30))
    interval = crossed_interval(values)
    error = values.std(ddof=1) / np.sqrt(30)
    assert interval.high - values.mean() == pytest.approx(2.0452 * error, rel=1e-3)
    assert crossed_interval(values.T) == interval
    assert crossed_interval([[3.0]]) == (3.0, 3.0, None, 0.0)
    assert crossed_interval(np.ones((3, 5))).p is None
    with pytest.raises(ValueError, match="seeds, rows"):
        crossed_interval([])


def test_values_that_cancel_out_are_not_certain():
    # By seed and by row the means are all 1/2: what the two-way layout sees of either is nothing.
    actual = crossed_interval([[0.0, 1.0], [1.0, 0.0]])
    assert actual.low < 0.1
    assert actual.high > 0.9
    assert actual.p is not None
    table = np.tile([[0.1, 0.7], [0.7, 0.1]], 3)  # the same with what floats leave over
    assert crossed_interval(table).high - crossed_interval(table).low > 0.2


def test_holm_is_the_textbook_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None, 0.9, 0.02]) == [pytest.approx(0.03), None, 0.9, 0.04]
