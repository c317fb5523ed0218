"""Intervals: against a known distribution, and their edge cases."""

import math

import numpy as np
import pytest

from hf_rlhf.evaluation import statistics
from hf_rlhf.evaluation.statistics import Interval, mean_intervals


def test_the_interval_leaves_out_as_much_on_either_side():
    """Of half ones, the resampled sum is Binomial(50, 1/2), whose quantiles are in any table."""
    interval = Interval.of_mean([0.0, 1.0] * 25)
    assert (interval.low, interval.high) == (18 / 50, 32 / 50)


def test_it_is_the_plain_bootstrap_of_rows_drawn_one_by_one():
    values = np.random.default_rng(3).normal(size=60)
    rng = np.random.default_rng(0)
    means = [values[rng.integers(0, 60, 60)].mean() for _ in range(10_000)]
    interval = Interval.of_mean(values.tolist())
    assert interval.mean == pytest.approx(values.mean())
    ends = np.percentile(means, [2.5, 97.5])
    assert (interval.low, interval.high) == pytest.approx(tuple(ends), abs=0.02)


@pytest.fixture
def draws(monkeypatch):
    """How many blocks of resamples were drawn, of none kept before."""
    sizes, draw = [], statistics._weights
    statistics._kept_draws.cache_clear()
    monkeypatch.setattr(statistics, "_weights", lambda *sized: sizes.append(sized) or draw(*sized))
    return sizes


def test_draws_are_kept_for_intervals_of_as_many_clusters(draws):
    values = np.random.default_rng(5).normal(size=(3, 40)).tolist()
    tables = [[values[0]], values, [[*values[0], 9.0]]]
    first = [over_seeds(table) for table in tables]
    ratio = Interval.of_ratio(values, values, draw_seeds=False)
    count = len(draws)
    assert [over_seeds(table) for table in tables] == first
    assert Interval.of_ratio(values, values, draw_seeds=False) == ratio
    assert len(draws) == count


def test_draws_in_smaller_blocks_or_not_kept_are_the_same(draws, monkeypatch):
    values = np.random.default_rng(6).normal(size=40).tolist()
    interval = Interval.of_mean(values)
    monkeypatch.setattr(statistics, "_CELLS", 400)
    assert Interval.of_mean(values) == interval
    monkeypatch.setattr(statistics, "_KEPT_BYTES", 0)
    statistics._kept_draws.cache_clear()
    assert Interval.of_mean(values) == interval
    assert statistics._kept_draws.cache_info().currsize == 0


def over_seeds(table):
    return mean_intervals({"": table})[""]


def test_the_same_rows_give_the_same_interval_beside_any_other_column():
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    interval = Interval.of_mean(values)
    assert mean_intervals({"other": [[2.0, None, 3.0, 4.0, 5.0]], "x": [values]})["x"] == interval
    assert interval.mean == 0.6
    assert interval.low < 0.6 < interval.high
    assert (interval.n, interval.values) == (5, 5)


def test_rows_of_one_cluster_are_no_more_evidence_than_one():
    rng = np.random.default_rng(2)
    values = (rng.random(20) < 0.5).astype(float).tolist()
    alone = Interval.of_mean(values)
    copied = Interval.of_mean(values * 10, [str(row) for row in range(20)] * 10)
    assert (copied.values, copied.n) == (200, 20)
    assert (copied.low, copied.high) == (alone.low, alone.high)


def test_a_row_without_a_value_is_in_no_mean():
    assert Interval.of_mean([None, None]) is None
    assert Interval.of_mean([]) is None
    interval = Interval.of_mean([1.0, None, 0.0, None])
    assert (interval.mean, interval.n) == (0.5, 2)


def test_equal_values_or_one_cluster_have_no_width():
    assert Interval.of_mean([3.0]).as_json() == {"mean": 3.0, "low": 3.0, "high": 3.0, "n": 1}
    tenths = Interval.of_mean([0.1] * 7)
    assert tenths.low == tenths.high == tenths.mean
    single = Interval.of_mean([0.0, 1.0, 1.0], ["a"] * 3)
    assert (single.low, single.high, single.n, single.values) == (single.mean, single.mean, 1, 3)


def test_values_that_cancel_out_give_exactly_zero():
    assert Interval.of_mean([0.3, -0.1, -0.1, -0.1] + [0.0] * 10).mean == 0
    assert Interval.of_mean([0.1] + [-0.1] * 5 + [0.0] * 10).high == 0
    tiny = Interval.of_mean([1e-20, 2e-20, 3e-20])
    assert 0 < tiny.low < tiny.mean < tiny.high


def test_seeds_that_disagree_widen_the_interval():
    """Two seeds, 0 on every prompt and 1 on every prompt: a resample holds 0, 1 or both."""
    interval = over_seeds([[0.0] * 50, [1.0] * 50])
    assert (interval.mean, interval.low, interval.high) == (0.5, 0.0, 1.0)


def test_seeds_that_are_not_drawn_do_not_widen_it():
    table = [[0.0, 0.1] * 25, [1.0, 1.1] * 25]
    ones = [[1.0] * 50] * 2
    drawn, fixed = Interval.of_ratio(table, ones), Interval.of_ratio(table, ones, draw_seeds=False)
    assert fixed.mean == drawn.mean
    assert fixed.high - fixed.low < 0.1 < drawn.high - drawn.low


def test_a_prompt_is_in_a_resample_with_all_seeds():
    """Where all seeds agree on each prompt, more seeds are no more evidence."""
    prompts = [0.0, 1.0] * 20
    single, three = over_seeds([prompts]), over_seeds([prompts] * 3)
    assert three.high - three.low == pytest.approx(single.high - single.low, abs=0.03)


def test_a_ratio_weighs_by_what_is_below():
    interval = Interval.of_ratio([[1.0, 9.0]], [[1.0, 3.0]])
    assert interval.mean == 2.5
    # Resamples: both times the first (1), one of each (10 / 4), both times the second (3).
    assert (interval.low, interval.high) == (1.0, 3.0)
    assert Interval.of_ratio([[1.0]], [[0.0]]) is None
    with pytest.raises(ValueError, match="one shape"):
        Interval.of_ratio([[1.0, 2.0]], [[1.0]])


def test_a_cell_without_a_value_is_left_out():
    interval = over_seeds([[1.0, None, 3.0], [None, None, 5.0]])
    assert (interval.mean, interval.n) == (3.0, 2)
    assert over_seeds([[None]]) is None


def test_any_statistic_of_weighted_rows_has_the_same_intervals():
    values = np.random.default_rng(4).normal(size=30)
    interval = Interval.of_statistic(lambda weights: weights @ values / weights.sum(axis=1), 30)
    mean = Interval.of_mean(values.tolist())
    assert (interval.low, interval.high) == pytest.approx((mean.low, mean.high))
    assert Interval.of_statistic(lambda weights: np.full(len(weights), np.nan), 30) is None


def test_a_value_that_is_no_number_is_not_left_out():
    """A diverged model must not get the mean of the rows on which it has not diverged."""
    value = math.inf
    columns = {"a": [[value, 1.0, None, 2.0]], "b": [[1.0, 2.0, 3.0, 4.0]]}
    broken, intact = mean_intervals(columns).values()
    assert not math.isfinite(broken.mean)
    assert math.isnan(broken.low)
    assert math.isnan(broken.high)
    assert (broken.n, broken.values) == (3, 3)
    assert intact == Interval.of_mean(columns["b"][0])
    assert math.isnan(Interval.of_mean([math.nan, 1.0]).mean)
