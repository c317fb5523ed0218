"""Overlapping frames of a wave, and what is measured frame by frame."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]


def frames(wave: Floats, length: int, step: int) -> Floats:
    """Return frames [count, length], a view; none if the wave is shorter than one."""
    if len(wave) < length:
        return np.zeros((0, length), wave.dtype)
    return sliding_window_view(wave, length)[::step]
