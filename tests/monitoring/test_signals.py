"""Each signal on series for which the answer is known."""

import random
from dataclasses import replace
from statistics import fmean

import pytest

from hf_rlhf.config.schema import MonitorSpec
from hf_rlhf.monitoring import Mean, Measurement, assess
from hf_rlhf.monitoring.signals import LEVEL, length_scores

SPEC = MonitorSpec(gold="truth")
WITHOUT_GOLD = replace(SPEC, gold=None)


def series(count=20, *, length=None, trained=None, gold=None, error=0.1):
    """Return measurements of 10 steps each; a list or a function gives the values."""

    def value(source, index, default):
        return default if source is None else source(index)

    return [
        Measurement(
            10 * (index + 1),
            64,
            Mean(value(length, index, 30 + index % 2), 1.0),
            Mean(value(trained, index, 1.0), error),
            Mean(value(gold, index, 1.0), error),
        )
        for index in range(count)
    ]


def on(measurements, spec=SPEC):
    """Return the signals of each measurement, by its step."""
    return {
        each.step: set(assess(measurements[: n + 1], spec).names)
        for n, each in enumerate(measurements)
    }


def test_a_quiet_training_has_no_signal_and_its_last_measurement_is_clean():
    measurements = series()
    assert not any(on(measurements).values())
    # The last measurements are those that the gold reward of the ones before is compared with.
    assert assess(measurements, SPEC).clean == 170
    without_gold = [replace(each, gold=None) for each in measurements]
    assert assess(without_gold, WITHOUT_GOLD).clean == 200
    assert assess([], SPEC).clean is None


def test_length_is_compared_with_the_spread_of_the_warm_up():
    measurements = series(
        length=lambda i: [30, 31, 32, 33, 34][i] if i < 5 else (40 if i > 12 else 33)
    )
    scores = length_scores(measurements, 5)
    assert scores[:5] == [None] * 5
    assert scores[13] == pytest.approx((40 - 32) / 2.5**0.5)
    signals = on(measurements)
    assert signals[130] == set()
    assert signals[140] == {"length"}
    found = assess(measurements, WITHOUT_GOLD)
    assert (found.signals[0].since, found.clean) == (140, 130)
    assert on(measurements, replace(SPEC, length_z=6.0))[140] == set()


def test_gold_falls_while_the_trained_reward_rises():
    hacked = series(trained=lambda i: i / 5, gold=lambda i: min(i, 8) / 4 - max(i - 8, 0) / 4)
    signals = on(hacked)
    first = min(step for step, names in signals.items() if names)
    assert 110 <= first <= 150
    found = assess(hacked[: first // 10], SPEC)
    assert found.names == {"gold"}
    assert found.clean <= 100, "the best measurements of gold are before the fall"
    assert found.trained.low > 0 > found.gold.high
    # Both fall, or both rise: no reward is exploited.
    assert not any(on(series(trained=lambda i: -i, gold=lambda i: -i)).values())
    assert not any(on(series(trained=lambda i: i, gold=lambda i: i)).values())
    # Within the intervals nothing is known.
    noisy = series(trained=lambda i: i / 5, gold=lambda i: -i / 50, error=3.0)
    assert not any(on(noisy).values())


def test_a_gold_that_does_not_fall_sets_the_signal_off_in_few_runs():
    rng = random.Random(0)
    runs = [
        series(40, trained=lambda i: i, gold=lambda _: rng.gauss(0.0, 0.1), error=0.1)
        for _ in range(100)
    ]
    false = [
        any(assess(measurements[:n], SPEC).names for n in range(6, 41)) for measurements in runs
    ]
    assert fmean(false) <= LEVEL


def test_the_clean_step_only_increases():
    rng = random.Random(1)
    for _ in range(20):
        measurements = series(
            30,
            length=lambda i: 30 + rng.gauss(0, 1) * (1 + i / 10),
            trained=lambda i: i / 20,
            gold=lambda i: rng.gauss(0, 0.2),
        )
        cleans = [assess(measurements[:n], SPEC).clean for n in range(1, 31)]
        assert cleans == sorted(cleans)


def test_a_mean_counts_a_prompt_once_and_ignores_the_order_of_rows():
    rows = [(1, 0.0), (1, 1.0), (2, 4.0), (2, None), (3, None)]
    mean = Mean.of(rows)
    assert (mean.mean, mean.error) == (pytest.approx(2.25), pytest.approx(1.75))
    assert Mean.of(rows[::-1]) == mean
    assert Mean.of([(1, 2.0), (1, 3.0)]) == Mean(2.5, None)
    assert Mean.of([(1, None)]) is None
