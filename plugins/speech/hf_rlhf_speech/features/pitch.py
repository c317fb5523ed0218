"""Pitch and harmonics-to-noise ratio by autocorrelation, after Boersma (1993).

"Accurate short-term analysis of the fundamental frequency and the harmonics-to-noise ratio of a
sampled sound", Proceedings of the Institute of Phonetic Sciences 17, 97-110: the method of Praat,
with its standard settings. The autocorrelation of a windowed frame is divided by the window's; its
peaks are candidates, from which a path through the frames is selected.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from hf_rlhf_speech.features.frames import Floats, frames

FLOOR, CEILING = 75.0, 600.0
"""Hz."""
STEP = 0.01
"""Seconds between frames."""
_PERIODS = 3
_CANDIDATES = 14
_OVERSAMPLED = 4
_SILENCE, _VOICING = 0.03, 0.45
_OCTAVE, _OCTAVE_JUMP, _VOICED_UNVOICED = 0.01, 0.35, 0.14


@dataclass(frozen=True)
class Pitch:
    """Values per frame."""

    hertz: NDArray[np.float64]
    """0 for unvoiced frames."""
    strength: NDArray[np.float64]
    """The autocorrelation at that period: harmonic energy as a share of all energy, in (0, 1)."""

    @property
    def voiced(self) -> NDArray[np.bool_]:
        """Return which frames are voiced."""
        return self.hertz > 0


def pitch_of(wave: Floats, rate: int) -> Pitch:
    """Return the pitch of frames 10 ms apart; empty for a wave shorter than three long periods."""
    wave = wave.astype(np.float64)
    windows = frames(wave, round(_PERIODS / FLOOR * rate), round(STEP * rate))
    if not len(windows):
        return Pitch(np.zeros(0), np.zeros(0))
    parts = [_candidates(part, rate) for part in np.array_split(windows, 1 + len(windows) // 512)]
    hertz, strength, local = map(np.concatenate, zip(*parts, strict=True))
    loudness = local / max(np.abs(wave - wave.mean()).max(), 1e-30)
    unvoiced = _VOICING + np.maximum(0.0, 2 - loudness * (1 + _VOICING) / _SILENCE)
    # Candidate 0 is "unvoiced". A lower octave must be stronger to be preferred.
    preferred = strength - _OCTAVE * np.log2(FLOOR / np.maximum(hertz, 1.0))
    gains = np.column_stack([unvoiced, np.where(hertz > 0, preferred, -np.inf)])
    hertz = np.pad(hertz, ((0, 0), (1, 0)))
    rows, path = np.arange(len(hertz)), _best_path(gains, hertz)
    return Pitch(hertz[rows, path], np.pad(strength, ((0, 0), (1, 0)))[rows, path])


def _candidates(windows: Floats, rate: int) -> tuple[Floats, Floats, Floats]:
    """Return pitch and strength of each frame's candidates, and its peak within a long period."""
    centred = windows - windows.mean(axis=1, keepdims=True)
    third = windows.shape[1] // _PERIODS
    local = np.abs(centred[:, third : 2 * third]).max(axis=1)
    correlation = _autocorrelation(centred)
    fine = rate * _OVERSAMPLED
    low, high = int(fine / CEILING), int(fine / FLOOR) + 1
    middle = correlation[:, low:high]
    before, after = correlation[:, low - 1 : high - 1], correlation[:, low + 1 : high + 1]
    peaks = (middle > before) & (middle >= after) & (middle > _VOICING / 2)
    heights = np.where(peaks, middle, -1.0)
    chosen = np.argpartition(-heights, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    left, top, right = (
        np.take_along_axis(values, chosen, axis=1) for values in (before, middle, after)
    )
    curvature = np.minimum(left - 2 * top + right, -1e-12)
    offset = 0.5 * (left - right) / curvature
    strength = top - 0.25 * (left - right) * offset
    strength = np.where(strength > 1, 1 / np.maximum(strength, 1), strength)
    is_peak = np.take_along_axis(peaks, chosen, axis=1)
    hertz = np.where(is_peak, fine / (low + chosen + offset), 0.0)
    return hertz, np.where(is_peak, strength, 0.0), local


def _autocorrelation(centred: Floats) -> Floats:
    """Return the normalised autocorrelation of each frame, at lags of a quarter of a sample."""
    window, own, size = _window(centred.shape[1])
    power = np.abs(scipy.fft.rfft(centred * window, size, axis=1)) ** 2
    correlation = scipy.fft.irfft(power, size * _OVERSAMPLED, axis=1)[:, : len(own)]
    energy = np.maximum(correlation[:, :1], 1e-30)
    normalised: Floats = correlation / energy / own
    return normalised


@lru_cache(maxsize=8)
def _window(length: int) -> tuple[Floats, Floats, int]:
    """Return a Hann window, its normalised autocorrelation, and the size of the transform."""
    size = int(scipy.fft.next_fast_len(int(1.5 * length), real=True))
    window = np.hanning(length + 2)[1:-1]
    power = np.abs(scipy.fft.rfft(window, size)) ** 2
    own = scipy.fft.irfft(power, size * _OVERSAMPLED)[: length * _OVERSAMPLED // 2]
    return window, own / own[0], size


def _best_path(gains: Floats, hertz: Floats) -> NDArray[np.int64]:
    """Return the candidate of each frame: the path with the most gain minus jumps (Viterbi)."""
    octaves = np.log2(np.maximum(hertz, 1.0))
    voiced = hertz > 0
    jumps = _OCTAVE_JUMP * np.abs(octaves[:-1, :, None] - octaves[1:, None, :])
    both = voiced[:-1, :, None] & voiced[1:, None, :]
    one = voiced[:-1, :, None] ^ voiced[1:, None, :]
    costs = np.where(both, jumps, _VOICED_UNVOICED * one)
    best, came_from = gains[0], []
    for frame, cost in enumerate(costs, start=1):
        total = best[:, None] - cost
        came_from.append(total.argmax(axis=0))
        best = total.max(axis=0) + gains[frame]
    path = [int(best.argmax())]
    for previous in reversed(came_from):
        path.append(int(previous[path[-1]]))
    return np.array(path[::-1])
