"""A vocoder: speech as envelope, loudness, pitch and voicing every 20 ms, and back.

The envelope is estimated as in CheapTrick (Morise 2015): a power spectrum smoothed over the width
of a harmonic. Speech is synthesised from minimum-phase pulses and shaped noise.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import butter, sosfilt

from hf_rlhf_speech.audio import RATE, Wave

HOP = RATE // 50
BANDS = 40
SILENCE_DB = -55.0
"""Loudness below which a frame is silence."""
_NFFT = 1024
_LOWEST, _HIGHEST = 60.0, 420.0
_SPLIT = 2000.0
"""Hz; voicing is measured below and above."""
_UNVOICED = 0.45
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Frames:
    """Speech parameters, a row every `HOP` samples."""

    envelope: Floats
    """[frames, BANDS] natural logarithm of the amplitude, of mean 0."""
    loudness: Floats
    """[frames] dB: 0 is a sine of full scale, roughly; at least `SILENCE_DB`."""
    pitch: Floats
    """[frames] log2 of Hz, interpolated through unvoiced frames."""
    voicing: Floats
    """[frames, 2] periodic share of the power below and above 2 kHz."""


def analyse(wave: Wave) -> Frames:
    """Return the parameters; the last, incomplete frame is padded with silence."""
    count = max(1, -(-len(wave) // HOP))
    padded = np.zeros((count + 1) * HOP + _NFFT)
    padded[_NFFT // 2 : _NFFT // 2 + len(wave)] = wave
    starts = np.arange(count) * HOP + HOP // 2
    frames = np.lib.stride_tricks.sliding_window_view(padded, _NFFT)[starts]
    loudness = _loudness(frames)
    lags, low = _period(frames)
    low = np.where(loudness > SILENCE_DB, low, 0.0)
    voiced = low > _UNVOICED
    high_pass = butter(4, _SPLIT, "high", fs=RATE, output="sos")
    high = _periodicity_at(sosfilt(high_pass, frames), lags)
    pitch = carry_pitch(np.log2(RATE / lags), voiced)
    voicing = np.where(voiced[:, None], np.stack([low, np.clip(high, 0, 1)], 1), 0.0)
    envelope = _envelope(frames, np.where(voiced, 2**pitch, 200.0))
    envelope = np.where(loudness[:, None] > SILENCE_DB, envelope, 0.0)
    return Frames(envelope, loudness, pitch, voicing)


def _loudness(frames: Floats) -> Floats:
    window = np.zeros(_NFFT)
    window[_NFFT // 2 - HOP : _NFFT // 2 + HOP] = np.hanning(2 * HOP)
    power = (frames**2 @ window) / window.sum()
    return np.asarray(np.maximum(10 * np.log10(2 * power + 1e-12), SILENCE_DB))


def _autocorrelation(frames: Floats) -> Floats:
    """Return the window-corrected autocorrelation at each lag (Boersma 1993), 1 at lag 0."""
    window = np.hanning(_NFFT)[None]
    centred = frames - frames.mean(1, keepdims=True)

    def correlate(x: Floats) -> Floats:
        power = np.abs(np.fft.rfft(x, 2 * _NFFT)) ** 2
        return np.fft.irfft(power)[:, : int(RATE / _LOWEST) + 2]

    own = correlate(window)
    both = correlate(centred * window)
    normalised: Floats = both / np.maximum(both[:, :1], 1e-9) / (own / own[:, :1])
    return normalised


def _period(frames: Floats) -> tuple[Floats, Floats]:
    """Return the period in samples and the periodicity of each frame, 0 to 1."""
    correlation = _autocorrelation(frames)
    first = int(RATE / _HIGHEST)
    lags = np.arange(first, correlation.shape[1] - 1)
    middle = correlation[:, lags]
    peak = (middle >= correlation[:, lags - 1]) & (middle >= correlation[:, lags + 1])
    # An octave down costs 0.05, so that twice the period does not win.
    score = np.where(peak, middle - 0.05 * np.log2(lags / first), -1.0)
    path = _smoothest(score, lags)
    rows = np.arange(len(frames))
    left, centre, right = (correlation[rows, path + d] for d in (-1, 0, 1))
    bend = np.minimum(left - 2 * centre + right, -1e-9)
    shift = np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return path + shift, np.clip(centre, 0, 1)


def _smoothest(score: Floats, lags: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a lag for each frame: the path through its five best lags with the smallest jumps."""
    best = np.argpartition(-score, 5, axis=1)[:, :5]
    value = np.take_along_axis(score, best, 1)
    octaves = np.log2(lags[best])
    total, origin = value[0], np.zeros(best.shape, np.int64)
    for frame in range(1, len(best)):
        jump = np.abs(octaves[frame][:, None] - octaves[frame - 1][None])
        reached = total[None] - 0.4 * jump
        origin[frame] = reached.argmax(1)
        total = value[frame] + reached.max(1)
    path = np.zeros(len(best), np.int64)
    last = int(total.argmax())
    for frame in range(len(best) - 1, -1, -1):
        path[frame], last = lags[best[frame, last]], origin[frame, last]
    return path


def _periodicity_at(frames: Floats, lags: Floats) -> Floats:
    correlation = _autocorrelation(frames)
    near = np.round(lags).astype(int)[:, None] + np.arange(-2, 3)
    near = np.clip(near, 1, correlation.shape[1] - 1)
    best: Floats = np.take_along_axis(correlation, near, 1).max(1)
    return best


def carry_pitch(pitch: Floats, voiced: NDArray[np.bool_]) -> Floats:
    """Return the pitch with unvoiced frames interpolated between their neighbours."""
    if not voiced.any():
        return np.full(len(pitch), np.log2(120.0))
    rows = np.arange(len(pitch))
    return np.interp(rows, rows[voiced], pitch[voiced])


def _envelope(frames: Floats, width: Floats) -> Floats:
    window = np.zeros(_NFFT)
    window[_NFFT // 4 : -_NFFT // 4] = np.hanning(_NFFT // 2)
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    total = np.concatenate([np.zeros((len(power), 1)), np.cumsum(power, 1)], 1)
    bins = _band_centres() / (RATE / _NFFT)
    # At least the width of a mel band, so that bands leave out no bin.
    spacing = np.gradient(bins)[None]
    half = np.maximum(width[:, None] / (RATE / _NFFT), spacing) / 2
    edges = np.clip(np.stack([bins - half, bins + half]) + 0.5, 0, power.shape[1])
    below = np.floor(edges).astype(int)
    share = edges - below
    above = np.minimum(below + 1, power.shape[1])
    rows = np.arange(len(power))[:, None]
    low, high = (
        total[rows, below[i]] * (1 - share[i]) + total[rows, above[i]] * share[i] for i in (0, 1)
    )
    smooth = 0.5 * np.log((high - low) / (edges[1] - edges[0]) + 1e-9)
    return np.asarray(smooth - smooth.mean(1, keepdims=True))


@cache
def _band_centres() -> Floats:
    mel = np.linspace(2595 * np.log10(1 + 60 / 700), 2595 * np.log10(1 + 7800 / 700), BANDS)
    return np.asarray(700 * (10 ** (mel / 2595) - 1))


def synthesize(frames: Frames) -> Wave:
    """Return speech of `HOP` samples per frame, with deterministic noise."""
    samples = len(frames.loudness) * HOP
    rng = np.random.default_rng(0)
    out = _noise(frames, samples, rng) + _pulses(frames, samples)
    loudest = np.abs(out).max()
    return np.asarray(out / max(1.0, loudest / 0.99), np.float32)


def _spectra(frames: Frames, times: Floats) -> tuple[Floats, Floats]:
    """Return log amplitude spectra of unit-rate noise at times in samples, and the noise share."""
    at = np.clip(times / HOP - 0.5, 0, len(frames.loudness) - 1)
    before = np.floor(at).astype(int)
    after = np.minimum(before + 1, len(frames.loudness) - 1)
    weight = (at - before)[:, None]

    def between(values: Floats) -> Floats:
        return np.asarray(values[before] * (1 - weight) + values[after] * weight)

    frequencies = np.fft.rfftfreq(_NFFT, 1 / RATE)
    bands = _band_centres()
    position = np.interp(frequencies, bands, np.arange(BANDS))
    left = np.minimum(position.astype(int), BANDS - 2)
    share = position - left
    envelope = between(frames.envelope)
    log_amplitude = envelope[:, left] * (1 - share) + envelope[:, left + 1] * share
    power = np.exp(2 * log_amplitude).mean(1, keepdims=True)
    loudness = between(frames.loudness[:, None])
    quiet = np.where(loudness <= SILENCE_DB + 1, -200.0, loudness)
    log_amplitude = log_amplitude - 0.5 * np.log(power) + quiet * np.log(10) / 20 - 0.5 * np.log(2)
    voicing = between(frames.voicing)
    slope = np.clip((frequencies - 1500) / 1000, 0, 1)[None]
    noise = 1 - (voicing[:, :1] * (1 - slope) + voicing[:, 1:] * slope)
    # A gliding period correlates less with the next, even without noise.
    return log_amplitude, np.clip(noise, 0, 1) ** 2.5


def _pulses(frames: Frames, samples: int) -> Floats:
    moments = (np.arange(len(frames.pitch)) + 0.5) * HOP
    pitch = 2 ** np.interp(np.arange(samples), moments, frames.pitch)
    phase = np.cumsum(pitch / RATE)
    starts = np.flatnonzero(np.diff(np.floor(phase), prepend=0) > 0)
    voiced = np.interp(starts, moments, frames.voicing.max(1)) > 0.1
    starts = starts[voiced]
    out = np.zeros(samples + _NFFT)
    if not len(starts):
        return out[:samples]
    log_amplitude, noise = _spectra(frames, starts.astype(np.float64))
    log_amplitude = log_amplitude + 0.5 * np.log(np.maximum(1 - noise, 1e-6))
    cepstrum = np.fft.irfft(log_amplitude)
    fold = np.zeros(_NFFT)
    fold[0] = fold[_NFFT // 2] = 1
    fold[1 : _NFFT // 2] = 2
    spectrum = np.exp(np.fft.rfft(cepstrum * fold))
    late = (phase[starts] % 1) / (pitch[starts] / RATE)
    delay = np.exp(2j * np.pi * np.fft.rfftfreq(_NFFT)[None] * late[:, None])
    scale = np.sqrt(RATE / pitch[starts])
    responses = np.fft.irfft(spectrum * delay) * scale[:, None]
    # A response that begins a fraction of a sample early wraps around: fade its end.
    responses *= np.concatenate([np.ones(_NFFT - 128), np.linspace(1, 0, 128)])
    np.add.at(out, starts[:, None] + np.arange(_NFFT), responses)
    return out[:samples]


def _noise(frames: Frames, samples: int, rng: np.random.Generator) -> Floats:
    size, hop = 256, 64
    white = rng.standard_normal(samples + 2 * size)
    starts = np.arange(0, samples + size, hop)
    window = np.hanning(size + 1)[:-1]
    pieces = np.lib.stride_tricks.sliding_window_view(white, size)[starts] * window
    log_amplitude, noise = _spectra(frames, np.asarray(starts - size / 2, np.float64))
    shape = np.exp(log_amplitude) * np.sqrt(noise)
    shaped = np.fft.irfft(np.fft.rfft(pieces, 2 * size) * shape[:, :: _NFFT // (2 * size)])
    out = np.zeros(len(white) + 2 * size)
    np.add.at(out, starts[:, None] + np.arange(2 * size), shaped)
    return np.asarray(out[size : size + samples] / np.sqrt((window**2).sum() / hop))
