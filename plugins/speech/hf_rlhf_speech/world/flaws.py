"""Add flaws of a known size to clean speech, so that its remaining quality is known."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.world.espeak import Utterance, speak

FLAT_PITCH = "flat_pitch"
_FRAME = RATE // 25
Floats = NDArray[np.float64]


def breath_noise(wave: Floats, size: float, rng: np.random.Generator) -> Floats:
    """Add hiss that follows the voice's level: at size 0.1 27 dB below it, at 1.0 as loud."""
    loudness = np.sqrt(np.convolve(wave**2, np.full(800, 1 / 800), "same"))
    hiss = lfilter([1, -0.7], [1], rng.standard_normal(len(wave)))
    return np.asarray(wave + 10 ** (-1.5 * (1 - size)) * loudness * hiss / hiss.std())


def jitter(wave: Floats, size: float, rng: np.random.Generator) -> Floats:
    """Let the pitch flutter at about 12 Hz, by up to two semitones (standard deviation)."""
    steps = len(wave) // (RATE // 24) + 3
    semitones = np.interp(
        np.arange(len(wave)), np.arange(steps) * (RATE // 24), rng.standard_normal(steps)
    )
    speed = 2 ** (2 * size * semitones / 12)
    times = np.cumsum(speed / speed.mean())
    return np.asarray(np.interp(times - times[0], np.arange(len(wave)), wave))


def clipping(wave: Floats, size: float, rng: np.random.Generator) -> Floats:
    """Clip the peaks, at size 1.0 at a twentieth of the highest, and preserve the loudness."""
    limit = np.abs(wave).max() * 0.05**size
    cut = np.clip(wave, -limit, limit)
    return np.asarray(cut * np.sqrt((wave**2).mean() / max((cut**2).mean(), 1e-12)))


def dropped_frames(wave: Floats, size: float, rng: np.random.Generator) -> Floats:
    """Silence up to 45% of the segments of 40 ms."""
    frames = len(wave) // _FRAME
    lost = rng.permutation(frames)[: round(0.45 * size * frames)]
    kept = np.ones(len(wave))
    for frame in lost:
        kept[frame * _FRAME : (frame + 1) * _FRAME] = 0
    return wave * kept


Damage = Callable[[Floats, float, np.random.Generator], Floats]
_DAMAGE: Mapping[str, Damage] = {
    "jitter": jitter,
    "clipped": clipping,
    "breath_noise": breath_noise,
    "dropped_frames": dropped_frames,
}
WEIGHTS: Mapping[str, float] = {
    FLAT_PITCH: 0.5,
    "jitter": 0.7,
    "clipped": 0.6,
    "breath_noise": 0.8,
    "dropped_frames": 1.0,
}
"""Flaw -> its cost in quality at size 1.0."""


def planted_quality(flaws: Mapping[str, float]) -> float:
    """Return 1 minus the weighted sizes, at least 0. Raises ValueError for an unknown flaw."""
    for flaw, size in flaws.items():
        if flaw not in WEIGHTS:
            raise ValueError(f"no flaw {flaw!r}; there are: {', '.join(WEIGHTS)}")
        if not 0 <= size <= 1:
            raise ValueError(f"the size of {flaw} is {size}, expected 0 to 1")
    return max(0.0, 1 - sum(WEIGHTS[flaw] * size for flaw, size in flaws.items()))


def render(utterance: Utterance, flaws: Mapping[str, float], seed: int = 0) -> Wave:
    """Return the utterance with its flaws, at 16 kHz; espeak itself speaks a flat pitch."""
    planted_quality(flaws)
    pitch_range = round(utterance.pitch_range * (1 - flaws.get(FLAT_PITCH, 0)))
    return damaged(speak(replace(utterance, pitch_range=pitch_range)), flaws, seed)


def damaged(wave: Wave, flaws: Mapping[str, float], seed: int = 0) -> Wave:
    """Return a waveform with all flaws but a flat pitch, and a peak of at most 0.9."""
    rng = np.random.default_rng(seed)
    out = wave.astype(np.float64)
    for flaw, damage in _DAMAGE.items():
        if flaws.get(flaw, 0) > 0:
            out = damage(out, flaws[flaw], rng)
    peak = max(float(np.abs(out).max(initial=0)), 1e-9)
    return np.asarray(out * min(1.0, 0.9 / peak), np.float32)


def draw_flaws(rng: np.random.Generator, clean: float = 0.3) -> dict[str, float]:
    """Return no flaw with probability `clean`, otherwise one or two with sizes up to 1."""
    if rng.random() < clean:
        return {}
    count = int(rng.integers(1, 3))
    kinds = rng.choice(list(WEIGHTS), size=count, replace=False)
    return {str(kind): round(float(rng.uniform(0.1, 1.0)), 2) for kind in kinds}
