"""Acoustic features: known signals have known values, and what cannot be measured is None."""

from dataclasses import asdict

import numpy as np
import pytest

from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.features.acoustic import Features, acoustic_features
from hf_rlhf_speech.features.pitch import pitch_of

TIME = np.arange(2 * RATE) / RATE


def buzz(hertz, noise=0.0):
    """Harmonics of a pitch that may glide, with noise of a known share of the energy."""
    phase = 2 * np.pi * np.cumsum(np.broadcast_to(hertz, TIME.shape)) / RATE
    tone = np.sum([np.sin(k * phase) / k for k in range(1, 12)], axis=0)
    hiss = np.random.default_rng(0).standard_normal(len(TIME)) * tone.std() * noise
    return (0.2 * (tone + hiss)).astype(np.float32)


@pytest.mark.parametrize("hertz", [80.0, 550.0])
@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_the_pitch_of_a_tone_is_found_at_any_rate(hertz, rate):
    wave = np.sin(2 * np.pi * hertz * np.arange(rate) / rate)
    pitch = pitch_of(wave, rate)
    assert pitch.voiced.mean() > 0.95
    assert np.median(pitch.hertz[pitch.voiced]) == pytest.approx(hertz, rel=0.002)


def test_pitch_variation_is_in_semitones():
    semitones = 3 * np.sin(2 * np.pi * 0.5 * TIME)
    measured = acoustic_features(buzz(150 * 2 ** (semitones / 12)), RATE).pitch_variation
    low, high = np.percentile(semitones, (10, 90))
    assert measured == pytest.approx((high - low) / 2.5632, rel=0.05)
    assert acoustic_features(buzz(150.0), RATE).pitch_variation == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("decibels", [5, 10, 20])
def test_harmonicity_is_the_ratio_of_tone_to_noise(decibels):
    wave = buzz(150.0, 10 ** (-decibels / 20))
    assert acoustic_features(wave, RATE).harmonicity == pytest.approx(decibels, abs=1.0)


def test_voicing_silence_and_dynamics_of_a_wave_in_three_parts():
    hiss = np.random.default_rng(1).standard_normal(RATE) * 0.05
    loud, quiet = buzz(150.0)[:RATE], buzz(150.0)[:RATE] / 10
    features = acoustic_features(np.concatenate([loud, quiet, hiss, np.zeros(RATE)]), RATE)
    assert features.silence == pytest.approx(0.25, abs=0.02)
    assert features.voiced == pytest.approx(2 / 3, abs=0.03)
    assert features.dynamics == pytest.approx(20, abs=1.0)


def test_noise_has_no_pitch_no_stability_and_a_high_centroid():
    features = acoustic_features(np.random.default_rng(0).standard_normal(RATE) * 0.1, RATE)
    assert (features.voiced, features.pitch_variation, features.harmonicity) == (0.0, None, None)
    assert features.stability == pytest.approx(0, abs=0.1)
    assert features.centroid == pytest.approx(4_000, rel=0.05)


def test_silence_and_less_than_a_frame_abstain_and_are_never_nan():
    assert acoustic_features(np.zeros(RATE), RATE) == Features(silence=1.0)
    assert acoustic_features(np.full(RATE, 0.3), RATE) == Features(silence=1.0)
    for samples in (0, 1, 100, 700, 1_000):
        assert acoustic_features(np.ones(samples), RATE) == Features()
    for samples in range(1_700, 4_000, 230):
        values = asdict(acoustic_features(buzz(150.0)[:samples], RATE)).values()
        assert all(value is None or np.isfinite(value) for value in values)
    with pytest.raises(ValueError, match="NaN"):
        acoustic_features(np.full(RATE, np.nan), RATE)


def test_loudness_and_offset_change_nothing():
    wave = buzz(150 + 20 * np.sin(TIME), 0.1)
    plain, quiet, shifted = (
        asdict(acoustic_features(each, RATE)) for each in (wave, wave / 20, wave + 0.2)
    )
    assert quiet == pytest.approx(plain, rel=1e-3, abs=1e-3)
    assert shifted == pytest.approx(plain, rel=0.01, abs=0.01)
