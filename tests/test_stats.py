"""Intervals: against a known distribution, and their edge cases."""

import numpy as np
import pytest

from hf_rlhf.stats import bootstrap_mean


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        interval = bootstrap_mean(rng.normal(2.0, 1.0, 50), resamples=400, seed=trial)
        covered += interval.low <= 2.0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


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
