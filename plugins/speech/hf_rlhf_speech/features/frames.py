"""Overlapping frames of a wave, for measurements by frame."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def frames(wave: Floats, length: int, step: int) -> Floats:
    """Return frames [count, length], a view; empty if the wave is shorter than a frame."""
    if len(wave) < length:
        return np.zeros((0, length), wave.dtype)
    return sliding_window_view(wave, length)[::step]
