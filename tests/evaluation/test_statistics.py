"""Intervals: against a known distribution, and their edge cases."""

import math

import numpy as np
import pytest

from hf_rlhf.evaluation import statistics
from hf_rlhf.evaluation.statistics import (
    crossed_mean,
    holm,
    mean_interval,
    mean_intervals,
    ratio_interval,
    statistic_interval,
    t_probability,
    t_quantile,
    table_interval,
)


def test_the_interval_covers_the_true_mean_about_as_often_as_stated(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 500)
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        interval = mean_interval(rng.normal(2.0, 1.0, 50).tolist())
        covered += interval.low <= 2.0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_the_interval_leaves_out_as_much_on_either_side():
    """Of half ones, the resampled sum is Binomial(50, 1/2), whose quantiles are in any table."""
    interval = mean_interval([0.0, 1.0] * 25)
    assert (interval.low, interval.high) == (18 / 50, 32 / 50)


def test_it_is_the_plain_bootstrap_of_rows_drawn_one_by_one():
    values = np.random.default_rng(3).normal(size=60)
    rng = np.random.default_rng(0)
    means = [values[rng.integers(0, 60, 60)].mean() for _ in range(10_000)]
    interval = mean_interval(values.tolist())
    assert interval.mean == pytest.approx(values.mean())
    ends = np.percentile(means, [2.5, 97.5])
    assert (interval.low, interval.high) == pytest.approx(tuple(ends), abs=0.02)


def test_many_clusters_are_drawn_in_smaller_blocks_with_the_same_result(monkeypatch):
    values = np.random.default_rng(5).normal(size=40).tolist()
    interval = mean_interval(values)
    monkeypatch.setattr(statistics, "_CELLS", 400)
    assert mean_interval(values) == interval


def test_the_same_rows_give_the_same_interval_beside_any_other_column():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    interval = mean_interval(values)
    assert mean_intervals({"other": [2.0, None, 3.0, 4.0, 5.0], "x": values})["x"] == interval
    assert interval.mean == 0.6
    assert interval.low < 0.6 < interval.high
    assert (interval.n, interval.values) == (5, 5)


def test_rows_of_one_cluster_are_no_more_evidence_than_one():
    rng = np.random.default_rng(2)
    values = (rng.random(20) < 0.5).astype(float).tolist()
    alone = mean_interval(values)
    copied = mean_interval(values * 10, [str(row) for row in range(20)] * 10)
    assert (copied.values, copied.n) == (200, 20)
    assert (copied.low, copied.high) == (alone.low, alone.high)


def test_clustered_intervals_hold_the_truth_about_as_often_as_stated():
    """Clusters differ much, rows of one cluster little: rows alone would be too sure."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(60):
        values, clusters = [], []
        for cluster in range(25):
            center = rng.normal()
            rows = int(rng.integers(1, 6))
            values += (center + rng.normal(0, 0.1, rows)).tolist()
            clusters += [str(cluster)] * rows
        interval = mean_interval(values, clusters)
        covered += interval.low <= 0 <= interval.high
    assert covered >= 51  # with these draws, intervals over rows alone cover it less often


def test_a_row_without_a_value_is_in_no_mean():
    assert mean_interval([None, None]) is None
    assert mean_interval([]) is None
    interval = mean_interval([1.0, None, 0.0, None])
    assert (interval.mean, interval.n) == (0.5, 2)


def test_equal_values_or_one_cluster_have_no_width():
    assert mean_interval([3.0]).as_json() == {"mean": 3.0, "low": 3.0, "high": 3.0, "n": 1}
    tenths = mean_interval([0.1] * 7)
    assert tenths.low == tenths.high == tenths.mean
    one = mean_interval([0.0, 1.0, 1.0], ["a"] * 3)
    assert (one.low, one.high, one.n, one.values) == (one.mean, one.mean, 1, 3)


def test_values_that_cancel_out_give_exactly_zero():
    assert mean_interval([0.3, -0.1, -0.1, -0.1] + [0.0] * 10).mean == 0
    assert mean_interval([0.1] + [-0.1] * 5 + [0.0] * 10).high == 0
    tiny = mean_interval([1e-20, 2e-20, 3e-20])
    assert 0 < tiny.low < tiny.mean < tiny.high


def test_seeds_that_disagree_widen_the_interval():
    """Two seeds, 0 on every prompt and 1 on every prompt: a resample holds 0, 1 or both."""
    interval = table_interval([[0.0] * 50, [1.0] * 50])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_seeds_that_are_not_drawn_do_not_widen_it():
    table = [[0.0, 0.1] * 25, [1.0, 1.1] * 25]
    ones = [[1.0] * 50] * 2
    drawn, fixed = ratio_interval(table, ones), ratio_interval(table, ones, draw_seeds=False)
    assert fixed.mean == drawn.mean
    assert fixed.high - fixed.low < 0.1 < drawn.high - drawn.low


def test_a_prompt_is_in_a_resample_with_all_seeds():
    """Where all seeds agree on each prompt, more seeds are no more evidence."""
    prompts = [0.0, 1.0] * 20
    one, three = table_interval([prompts]), table_interval([prompts] * 3)
    assert three.high - three.low == pytest.approx(one.high - one.low, abs=0.03)


def test_a_ratio_weighs_by_what_is_below():
    interval = ratio_interval([[1.0, 9.0]], [[1.0, 3.0]])
    assert interval.mean == 2.5
    # Resamples: both times the first (1), one of each (10 / 4), both times the second (3).
    assert (interval.low, interval.high) == (1.0, 3.0)
    assert ratio_interval([[1.0]], [[0.0]]) is None
    with pytest.raises(ValueError, match="one shape"):
        ratio_interval([[1.0, 2.0]], [[1.0]])


def test_a_cell_without_a_value_is_left_out():
    interval = table_interval([[1.0, None, 3.0], [None, None, 5.0]])
    assert (interval.mean, interval.n) == (3.0, 2)
    assert table_interval([[None]]) is None


def test_any_statistic_of_weighted_rows_has_the_same_intervals():
    values = np.random.default_rng(4).normal(size=30)
    interval = statistic_interval(lambda weights: weights @ values / weights.sum(axis=1), 30)
    mean = mean_interval(values.tolist())
    assert (interval.low, interval.high) == pytest.approx((mean.low, mean.high))
    assert statistic_interval(lambda weights: np.full(len(weights), np.nan), 30) is None


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


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (10, 2.22814), (1000, 1.96234)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=1e-4)
    assert t_probability(expected, freedom) == pytest.approx(0.975, abs=1e-5)
    assert t_probability(-expected, freedom) == pytest.approx(0.025, abs=1e-5)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert t_quantile(0.975, 1e9) == pytest.approx(1.95996, rel=1e-3)


@pytest.mark.parametrize("spread", [(0.0, 1.0, 1.0), (0.3, 0.3, 1.0), (1.0, 0.1, 0.1)])
@pytest.mark.parametrize("seeds", [2, 4])
def test_the_interval_covers_the_mean_over_other_seeds_and_rows(spread, seeds):
    rng = np.random.default_rng(seeds)
    of_seed, of_row, of_both = spread
    covered = 0
    for _ in range(80):
        values = 2.0 + of_seed * rng.normal(size=(seeds, 1)) + of_row * rng.normal(size=(1, 40))
        interval = crossed_mean(values + of_both * rng.normal(size=(seeds, 40)))
        covered += interval.low <= 2.0 <= interval.high
    # 0.95 give or take 3 standard errors, and what Satterthwaite's approximation lacks.
    assert 0.86 <= covered / 80 <= 1.0


def test_seeds_widen_the_interval_where_rows_alone_would_not():
    """With seeds that differ, a bootstrap over rows is far too sure of itself."""
    rng = np.random.default_rng(0)
    values = np.array([0.2, 0.5, 0.8])[:, None] + 0.01 * rng.normal(size=(3, 200))
    interval = crossed_mean(values)
    assert interval.high - interval.low == pytest.approx(2 * 4.303 * 0.3 / np.sqrt(3), rel=0.02)
    assert (interval.seeds, interval.rows) == (3, 200)
    assert interval.p == pytest.approx(0.1018, abs=0.002)  # t = 2.887, 2 degrees of freedom


def test_one_seed_is_over_rows_and_one_value_has_no_width():
    values = np.random.default_rng(0).normal(size=(1, 30))
    interval = crossed_mean(values)
    error = values.std(ddof=1) / np.sqrt(30)
    assert interval.high - interval.mean == pytest.approx(2.0452 * error, rel=1e-3)
    assert crossed_mean(values.T).as_json() == {**interval.as_json(), "seeds": 30, "rows": 1}
    assert crossed_mean([[3.0]]).as_json() == {
        **{"mean": 3.0, "low": 3.0, "high": 3.0, "p": None},
        **{"seeds": 1, "rows": 1},
    }
    assert crossed_mean(np.ones((3, 5))).p is None
    with pytest.raises(ValueError, match="seeds, rows"):
        crossed_mean([])


def test_values_that_cancel_out_are_not_certain():
    # By seed and by row the means are all 1/2: what the two-way layout sees of either is nothing.
    found = crossed_mean([[0.0, 1.0], [1.0, 0.0]])
    assert found.low < 0.1
    assert found.high > 0.9
    assert found.p is not None
    table = np.tile([[0.1, 0.7], [0.7, 0.1]], 3)  # the same with what floats leave over
    assert crossed_mean(table).high - crossed_mean(table).low > 0.2


def test_holm_is_the_textbook_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_not_left_out(value):
    """A diverged model must not get the mean of the rows on which it has not diverged."""
    columns = {"a": [value, 1.0, None, 2.0], "b": [1.0, 2.0, 3.0, 4.0]}
    broken, intact = mean_intervals(columns).values()
    assert not math.isfinite(broken.mean)
    assert math.isnan(broken.low)
    assert math.isnan(broken.high)
    assert (broken.n, broken.values) == (3, 3)
    assert intact == mean_interval(columns["b"])
    ratio = table_interval([[value, 1.0], [1.0, None]])
    assert not math.isfinite(ratio.mean)
    assert ratio.values == 3
