"""Pitch, voicing and harmonicity are those of Praat, on the clips of the benchmark."""

import runpy
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "speech_features.py"
TOLERANCES = {
    "median pitch (Hz)": 1.0,
    "pitch_variation (semitones)": 0.15,
    "voiced share of frames": 0.03,
    "harmonicity (dB)": 0.8,
}


@pytest.mark.slow
def test_features_are_within_tolerance_of_praat_on_200_clips():
    pytest.importorskip("parselmouth")
    measured, _, _ = runpy.run_path(str(BENCHMARK))["compare"]()
    for name, tolerance in TOLERANCES.items():
        ours, theirs = measured[name]
        assert len(ours) >= 200
        assert np.quantile(np.abs(ours - theirs), 0.95) < tolerance, name
