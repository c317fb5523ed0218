"""Intervals of both kinds, and the verdicts that follow from them."""

import numpy as np
import pytest

from hf_rlhf_studies.crossed import TInterval
from hf_rlhf_studies.estimates import Estimate, estimate, paired, verdict


def difference(low, t_low, mean=0.1, seeds=(0.1, 0.1)):
    by_seed, t = dict(enumerate(seeds, start=1)), TInterval(t_low, 0.3, 0.01)
    return Estimate(mean=mean, low=low, high=0.3, n=9, values=9, t=t, by_seed=by_seed)


@pytest.mark.parametrize(
    ("low", "t_low", "p", "expected"),
    [
        (0.01, 0.01, 0.049, "yes"),
        (0.01, 0.01, 0.05, "not after Holm's adjustment"),
        (0.01, 0.01, None, "not after Holm's adjustment"),
        (0.01, -0.01, 0.2, "by the bootstrap only"),
        (-0.01, -0.01, 0.2, "not shown"),
    ],
)
@pytest.mark.parametrize("predicted", ["higher", "lower"])
def test_a_plain_yes_needs_both_intervals_and_the_adjusted_p(low, t_low, p, expected, predicted):
    gap = difference(low, t_low)
    gap = gap if predicted == "higher" else gap.negative()
    assert verdict(gap, predicted, p, "intervals", 0.0) == expected
    other = "lower" if predicted == "higher" else "higher"
    opposite = {"yes": "no: the opposite", "not shown": "not shown"}
    expected = opposite.get(expected, f"no: the opposite, {expected}")
    assert verdict(gap, other, p, "intervals", 0.0) == expected


@pytest.mark.parametrize(
    ("seeds", "spread", "expected"),
    [
        ((0.1, 0.1), 0.05, "yes"),
        ((0.3, -0.1), 0.05, "not shown: a seed differs"),
        ((0.1, 0.1), 0.2, "not shown: within the spread of seeds"),
    ],
)
def test_by_signs_a_difference_must_exceed_the_spread_of_seeds(seeds, spread, expected):
    assert verdict(difference(0.01, -0.5, seeds=seeds), "higher", None, "signs", spread) == expected


def test_seeds_that_are_drawn_widen_the_bootstrap():
    rng = np.random.default_rng(0)
    values = {seed: list(seed / 2 + rng.normal(scale=0.1, size=50)) for seed in (1, 2, 3)}
    drawn, fixed = (estimate(values, draw_seeds=draw) for draw in (True, False))
    assert drawn.mean == fixed.mean == pytest.approx(1.0, abs=0.05)
    assert drawn.high - drawn.low > 5 * (fixed.high - fixed.low)
    assert drawn.t == fixed.t


def test_rows_without_a_score_are_left_out():
    first, other = (
        {1: [1.0, None, 3.0], 2: [1.0, 2.0, 3.0]},
        {1: [0.0, 1.0, 1.0], 2: [0.0, 1.0, 1.0]},
    )
    gap = estimate(paired(first, other))
    assert gap.left_out == 1
    assert gap.mean == pytest.approx(7 / 5)
    assert estimate({1: [None, None]}) is None


@pytest.mark.parametrize(
    ("value", "seeds", "expected"),
    [
        (1.0, 3, "as predicted and the same everywhere: nothing varies, no test"),
        (1.0, 2, "not shown"),
        (0.0, 3, "not shown"),
        (-1.0, 3, "no: the opposite"),
    ],
)
@pytest.mark.parametrize("decision", ["intervals", "signs"])
def test_a_difference_that_never_varies_has_no_test(value, seeds, expected, decision):
    gap = estimate({seed: [value, value] for seed in range(seeds)})
    assert gap.constant
    assert verdict(gap, "higher", gap.t.p, decision, 0.0) == expected
    assert verdict(gap.negative(), "lower", gap.t.p, decision, 0.0) == expected
