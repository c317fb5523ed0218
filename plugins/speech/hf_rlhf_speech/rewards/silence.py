"""Silence by the voice activity detector: around the speech, and `no_long_silence`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward, within
from hf_rlhf_speech.rewards.vad import VAD_FRAME, VAD_PACKAGES, speech_probabilities

_SPOKEN = 0.5
_MARGIN = RATE // 10
"""Kept before and after speech, whose first and last sounds may be too soft to be detected."""


def trim_silence(wave: Wave) -> Wave:
    """Return a wave of 16 kHz from the first speech to the last; nothing if there is none."""
    spoken = np.flatnonzero(speech_probabilities(wave) >= _SPOKEN)
    if not len(spoken):
        return wave[:0]
    start, end = spoken[0] * VAD_FRAME - _MARGIN, (spoken[-1] + 1) * VAD_FRAME + _MARGIN
    return wave[max(0, start) : end]


def longest_silence(wave: Wave) -> float:
    """Return the most seconds in a row without speech in a wave of 16 kHz, its ends included."""
    probabilities = speech_probabilities(wave)
    spoken = np.flatnonzero(probabilities >= _SPOKEN)
    gaps = np.diff(np.concatenate([[-1], spoken, [len(probabilities)]])) - 1
    return float(gaps.max()) * VAD_FRAME / RATE


@dataclass
class NoLongSilence(SpeechReward):
    """1.0 for speech without long silence at its ends or within, 0.0 for silence that runs on.

    By the most seconds in a row in which a voice activity detector hears no speech: 1.0 up to half
    of `longest`, and falling to 0.0 there.
    """

    packages = VAD_PACKAGES
    longest: float = 1.0
    """The seconds without speech at which the score is 0."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec, or a duration that is none."""
        super().__post_init__()
        if not self.longest > 0:
            what = f"`longest` is {self.longest}, expected seconds above 0."
            raise ConfigError([Problem("no_long_silence", what, "Write 1.0.")])

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one score in [0, 1] per completion, or None for a file that cannot be read."""
        band = (-1.0, 0.0, self.longest / 2, self.longest)
        return self.listen(
            completions, lambda _, speech: within(longest_silence(speech.wave), band), log_metric
        )
