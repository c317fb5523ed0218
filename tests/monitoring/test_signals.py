"""Each signal on series for which the answer is known."""

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest

from hf_rlhf.config.schema import MonitorSpec
from hf_rlhf.monitoring import Histogram, Look, Mean, assess
from hf_rlhf.monitoring.signals import LEVEL, compare_gold, length_scores

SPEC = MonitorSpec(gold="truth", histogram_kl=0.15, rising=3)
WITHOUT_GOLD = replace(SPEC, gold=None)


def series(count=20, *, length=None, kl=None, trained=None, gold=None, error=0.1):
    """Return looks of 10 steps each; a list or a function gives the values."""

    def value(source, index, default):
        return default if source is None else source(index)

    return [
        Look(
            10 * (index + 1),
            64,
            Mean(value(length, index, 30 + index % 2), 1.0),
            Mean(value(trained, index, 1.0), error),
            Mean(value(gold, index, 1.0), error),
            None if index < SPEC.warmup else value(kl, index, 0.01),
        )
        for index in range(count)
    ]


def on(looks, spec=SPEC):
    """Return the signals of every look, by its step."""
    return {look.step: set(assess(looks[: n + 1], spec).names) for n, look in enumerate(looks)}


def test_a_quiet_training_has_no_signal_and_its_last_look_is_clean():
    looks = series()
    assert not any(on(looks).values())
    # The last looks are those that the gold reward of the ones before is compared with.
    assert assess(looks, SPEC).clean == 170
    without_gold = [replace(look, gold=None) for look in looks]
    assert assess(without_gold, WITHOUT_GOLD).clean == 200
    assert assess([], SPEC).clean is None


def test_length_is_compared_with_the_spread_of_the_warm_up():
    looks = series(length=lambda i: [30, 31, 32, 33, 34][i] if i < 5 else (40 if i > 12 else 33))
    scores = length_scores(looks, 5)
    assert scores[:5] == [None] * 5
    assert scores[13] == pytest.approx((40 - 32) / 2.5**0.5)
    signals = on(looks)
    assert signals[130] == set()
    assert signals[140] == {"length"}
    found = assess(looks, WITHOUT_GOLD)
    assert (found.signals[0].since, found.clean) == (140, 130)
    assert on(looks, replace(SPEC, length_z=6.0))[140] == set()


def test_a_warm_up_of_equal_lengths_measures_nothing():
    assert set(length_scores(series(length=lambda i: 16.0 if i < 10 else 99.0), 5)) == {None}


def test_the_histogram_must_be_far_and_rise_three_times_and_then_stays():
    kl = dict(zip(range(8, 15), [0.05, 0.1, 0.2, 0.18, 0.3, 0.4, 0.5], strict=True))
    looks = series(kl=lambda i: kl.get(i, 0.4 if i > 8 else 0.02))
    signals = on(looks)
    # 0.05, 0.1 and 0.2 are the first three rises.
    assert signals[100] == set()
    assert signals[110] == signals[120] == {"histogram"}
    found = assess(looks, WITHOUT_GOLD)
    assert (found.signals[0].since, found.clean) == (90, 80)
    below = series(kl=lambda i: 0.5 if i == 12 else 0.1)
    assert not any(on(below).values()), "one high look is no rise"
    falls = series(kl=lambda i: {8: 0.1, 9: 0.2, 10: 0.3}.get(i, 0.01))
    assert on(falls)[110] == {"histogram"}
    assert on(falls)[120] == set()


def test_gold_falls_while_the_trained_reward_rises():
    hacked = series(trained=lambda i: i / 5, gold=lambda i: min(i, 8) / 4 - max(i - 8, 0) / 4)
    signals = on(hacked)
    first = min(step for step, names in signals.items() if names)
    assert 110 <= first <= 150
    found = assess(hacked[: first // 10], SPEC)
    assert found.names == {"gold"}
    assert found.clean <= 100, "the best looks of gold are before the fall"
    assert found.trained.low > 0 > found.gold.high
    # Both fall, or both rise: no reward is exploited.
    assert not any(on(series(trained=lambda i: -i, gold=lambda i: -i)).values())
    assert not any(on(series(trained=lambda i: i, gold=lambda i: i)).values())
    # Within the intervals nothing is known.
    noisy = series(trained=lambda i: i / 5, gold=lambda i: -i / 50, error=3.0)
    assert not any(on(noisy).values())


def test_before_gold_is_known_to_fall_its_best_looks_are_the_clean_ones():
    looks = series(trained=lambda i: i, gold=lambda i: 1.0 if 6 <= i <= 8 else 0.95)
    found = assess(looks, SPEC)
    assert not found.names
    assert found.clean == 90


def test_a_gold_that_does_not_fall_sets_the_signal_off_in_few_runs():
    rng = random.Random(0)
    runs = [
        series(60, trained=lambda i: i, gold=lambda _: rng.gauss(0.0, 0.1), error=0.1)
        for _ in range(200)
    ]
    false = [any(assess(looks[:n], SPEC).names for n in range(6, 61)) for looks in runs]
    assert fmean(false) <= LEVEL


def test_the_more_is_compared_the_wider_the_intervals_are():
    few, many = (compare_gold(series(count), 3)[2] for count in (6, 40))
    assert many.high - many.low > 1.5 * (few.high - few.low)
    assert compare_gold(series(5), 3) is None


def test_the_clean_step_only_increases():
    rng = random.Random(1)
    for _ in range(20):
        looks = series(
            30,
            length=lambda i: 30 + rng.gauss(0, 1) * (1 + i / 10),
            kl=lambda i: rng.random() / 2,
            trained=lambda i: i / 20,
            gold=lambda i: rng.gauss(0, 0.2),
        )
        cleans = [assess(looks[:n], SPEC).clean for n in range(1, 31)]
        assert cleans == sorted(cleans)


def test_when_to_stop():
    gold = assess(series(trained=lambda i: i, gold=lambda i: -i), SPEC)
    assert [gold.stops(when) for when in ("gold", "both", "never")] == [True, True, False]
    two = assess(series(length=lambda i: 30 + i % 2 + 10 * (i > 9), kl=lambda i: i / 10), SPEC)
    assert two.names == {"length", "histogram"}
    assert [two.stops(when) for when in ("gold", "both", "never")] == [False, True, False]
    one = assess(series(kl=lambda i: i / 10), SPEC)
    assert not one.stops("both")


def test_a_mean_counts_a_prompt_once_and_ignores_the_order_of_rows():
    rows = [(1, 0.0), (1, 1.0), (2, 4.0), (2, None), (3, None)]
    mean = Mean.of(rows)
    assert (mean.mean, mean.error) == (pytest.approx(2.25), pytest.approx(1.75))
    assert Mean.of(rows[::-1]) == mean
    assert Mean.of([(1, 2.0), (1, 3.0)]) == Mean(2.5, None)
    assert Mean.of([(1, None)]) is None


def test_a_histogram_moves_with_its_values_and_holds_what_lies_outside():
    start = [i / 100 for i in range(100)]
    histogram = Histogram.of(start, 20)
    assert sum(histogram.counts) == 100
    assert histogram.divergence(start) == 0
    shifted = [histogram.divergence([value + by for value in start]) for by in (0.1, 0.3, 5.0)]
    assert 0 < shifted[0] < shifted[1] < shifted[2] < float("inf")
    assert histogram.count([-9.0, 9.0]) == (1, *[0] * 18, 1)
    assert Histogram.of([1.0, 1.0], 20) is None
    assert histogram.divergence([]) is None


def test_the_divergence_is_of_the_warm_up_from_the_values_now():
    """KL(warm-up || now), by hand: with half a count in each bin, (.7, .3) and (.1, .9)."""
    start = Histogram.of([0.0, 0.0, 0.0, 1.0], 2)
    by_hand = 0.7 * math.log(0.7 / 0.1) + 0.3 * math.log(0.3 / 0.9)
    assert start.divergence([1.0] * 4) == pytest.approx(by_hand)


def test_the_gold_signal_needs_a_rise_beyond_its_interval_and_begins_after_the_best_looks():
    falling = series(trained=lambda i: i / 5, gold=lambda i: -i / 2)
    found = assess(falling, SPEC)
    assert found.names == {"gold"}
    assert found.signals[0].since == found.clean + 10
    unsure = [replace(look, trained=replace(look.trained, error=9.0)) for look in falling]
    found = assess(unsure, SPEC)
    assert found.trained.value > 0 > found.trained.low
    assert found.gold.high < 0
    assert not found.names
