"""Seven numbers that describe how an utterance sounds, not its words: `acoustic_features`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hf_rlhf_speech.features.frames import Floats
from hf_rlhf_speech.features.pitch import Pitch, pitch_of
from hf_rlhf_speech.features.spectrum import Spectrum, spectrum_of

MIN_FRAMES = 10
"""Minimum frames of a feature: 0.1 s."""


@dataclass(frozen=True)
class Features:
    """The features of a wave. A feature with too little data is None, never NaN."""

    pitch_variation: float | None = None
    """Semitones: the spread of pitch over the voiced frames, as the standard deviation of a normal
    distribution with their 10th and 90th percentile, which is robust against octave errors."""
    harmonicity: float | None = None
    """dB: harmonics-to-noise ratio (Boersma 1993), the mean over the voiced frames."""
    voiced: float | None = None
    """Share of the non-silent frames with a pitch."""
    dynamics: float | None = None
    """dB: between the 10th and the 90th percentile of the level, over non-silent frames."""
    stability: float | None = None
    """Correlation of the MFCCs (1 to 12) of non-silent frames 30 ms apart: the smoothness of
    articulation. A static sound has only its noise, and about 0."""
    centroid: float | None = None
    """Hz: mean spectral centroid of the non-silent frames."""
    silence: float | None = None
    """Share of silent frames: 40 dB below the loud frames."""


def acoustic_features(wave: Floats, rate: int) -> Features:
    """Return the features of samples in [-1, 1], at a rate of at least 8,000 Hz.

    Silence has only `silence`, and a wave shorter than 0.1 s nothing. Raises ValueError for samples
    that are not finite.
    """
    if not np.isfinite(wave).all():
        raise ValueError("Samples must be finite; some are NaN or infinite.")
    spectrum = spectrum_of(wave - np.mean(wave) if len(wave) else wave, rate)
    silent = spectrum.silent
    if len(silent) < MIN_FRAMES:
        return Features()
    silence = float(silent.mean())
    sounding = ~silent
    if sounding.sum() < MIN_FRAMES:
        return Features(silence=silence)
    pitch = pitch_of(wave, rate)
    low, high = np.percentile(spectrum.level[sounding], (10, 90))
    return Features(
        pitch_variation=_pitch_variation(pitch),
        harmonicity=_harmonicity(pitch),
        voiced=_voiced(pitch, sounding),
        dynamics=float(high - low),
        stability=_stability(spectrum, sounding),
        centroid=float(spectrum.centroid[sounding].mean()),
        silence=silence,
    )


def _pitch_variation(pitch: Pitch) -> float | None:
    if pitch.voiced.sum() < MIN_FRAMES:
        return None
    low, high = np.percentile(12 * np.log2(pitch.hertz[pitch.voiced]), (10, 90))
    return float((high - low) / (2 * 1.2816))


def _harmonicity(pitch: Pitch) -> float | None:
    if pitch.voiced.sum() < MIN_FRAMES:
        return None
    share = np.clip(pitch.strength[pitch.voiced], 1e-6, 1 - 1e-6)
    return float((10 * np.log10(share / (1 - share))).mean())


def _voiced(pitch: Pitch, sounding: NDArray[np.bool_]) -> float | None:
    if not len(pitch.hertz):
        return None
    # A pitch frame is longer: its centre is later than the level frame's.
    aligned = sounding[1:][: len(pitch.hertz)]
    return float(pitch.voiced[: len(aligned)][aligned].mean()) if aligned.any() else None


LAG = 3


def _stability(spectrum: Spectrum, sounding: NDArray[np.bool_]) -> float | None:
    pairs = sounding[LAG:] & sounding[:-LAG]
    if pairs.sum() < MIN_FRAMES:
        return None
    centred = spectrum.cepstrum - spectrum.cepstrum[sounding].mean(axis=0)
    before, after = centred[:-LAG][pairs], centred[LAG:][pairs]
    energy = np.sqrt((before**2).sum() * (after**2).sum())
    return float((before * after).sum() / energy) if energy > 0 else None
