"""Level, mel cepstrum and spectral centroid of frames of 25 ms, 10 ms apart."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from hf_rlhf_speech.features.frames import Floats, frames

LENGTH, STEP = 0.025, 0.01
"""Seconds."""
SILENT_BELOW_DB, SILENT_DBFS = 40.0, -70.0
"""A frame is silent this far below the clip's loud frames (their 95th percentile), or below a level
that speech recordings never need: the least step of 16 bits is -96 dB."""
_MELS, _CEPSTRUM = 26, 12


@dataclass(frozen=True)
class Spectrum:
    """Values, or rows, per frame."""

    level: NDArray[np.float64]
    """RMS in dB; 0 for a full-scale square wave."""
    cepstrum: NDArray[np.float64]
    """MFCC 1 to 12."""
    centroid: NDArray[np.float64]
    """Hz: the mean frequency, weighted by magnitude."""

    @property
    def silent(self) -> NDArray[np.bool_]:
        """Return which frames are silent."""
        if not len(self.level):
            return np.zeros(0, bool)
        threshold = np.percentile(self.level, 95) - SILENT_BELOW_DB
        silent: NDArray[np.bool_] = self.level < max(threshold, SILENT_DBFS)
        return silent


def spectrum_of(wave: Floats, rate: int) -> Spectrum:
    """Return level, cepstrum and centroid of each frame; empty for a wave shorter than a frame."""
    length = round(LENGTH * rate)
    windows = frames(wave.astype(np.float32), length, round(STEP * rate))
    level = 10 * np.log10(np.maximum((windows**2).mean(axis=1), 1e-12))
    emphasised = np.diff(windows, axis=1) * np.hamming(length - 1).astype(np.float32)
    size = scipy.fft.next_fast_len(length, real=True)
    magnitude = np.abs(scipy.fft.rfft(emphasised, size, axis=1))
    mels = np.log(np.maximum(magnitude**2 @ _mel_filters(rate, size), 1e-10))
    cepstrum = scipy.fft.dct(mels, axis=1, norm="ortho")[:, 1 : _CEPSTRUM + 1]
    plain = np.abs(scipy.fft.rfft(windows * np.hanning(length).astype(np.float32), size, axis=1))
    hertz = scipy.fft.rfftfreq(size, 1 / rate).astype(np.float32)
    centroid = plain @ hertz / np.maximum(plain.sum(axis=1), 1e-10)
    return Spectrum(*(each.astype(np.float64) for each in (level, cepstrum, centroid)))


@lru_cache(maxsize=8)
def _mel_filters(rate: int, size: int) -> Floats:
    """Return triangular filters [bins, mels] from 60 Hz to 7.6 kHz, or to half the rate."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (60.0, min(7600.0, rate / 2)))
    edges = 700 * (10 ** (np.linspace(low, high, _MELS + 2) / 2595) - 1)
    hertz = scipy.fft.rfftfreq(size, 1 / rate)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    filters: Floats = np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)
    return filters
