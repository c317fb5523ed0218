"""Rewards by simple measures of the samples: duration relative to the text, clipping."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward, within
from hf_rlhf_speech.rewards.models import VAD_PACKAGES, trim_silence
from hf_rlhf_speech.speech import Speech

_WORD = re.compile(r"[a-z]+|\d", re.IGNORECASE)
_VOWELS = re.compile(r"[aeiouy]+", re.IGNORECASE)
_SECONDS, _PAUSE = 0.21, 0.3


def plain_letters(text: str) -> str | None:
    """Return a text without accents; None if it has letters other than a to z."""
    parts = unicodedata.normalize("NFKD", text)
    plain = "".join(each for each in parts if not unicodedata.combining(each))
    return None if any(each.isalpha() and not each.isascii() for each in plain) else plain


def expected_seconds(text: str) -> float | None:
    """Return the expected duration of English text: 0.21 s per syllable, plus 0.3 s.

    A syllable is a group of vowels without a silent e at the end, or a digit. None for a text
    without words, or in another script.
    """
    words = _WORD.findall(plain_letters(text) or "")
    if not words:
        return None
    groups = (len(_VOWELS.findall(re.sub(r"(?<=[^aeiouy])e$", "", word))) for word in words)
    return _SECONDS * sum(max(1, count) for count in groups) + _PAUSE


@dataclass
class DurationFits(SpeechReward):
    """Score 1.0 if the duration fits the text, 0.0 if it is much shorter or longer.

    Uses the ratio to an average speaker's duration, from the first to the last speech of a voice
    activity detector; 0.0 without speech. For silence see `no_long_silence`.
    """

    packages = VAD_PACKAGES
    band: tuple[float, float, float, float] = (0.4, 0.65, 1.7, 2.6)
    """The ratios at which the score is 0, 1, 1 and 0 again, with linear interpolation."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec, or bounds that do not increase."""
        super().__post_init__()
        zero, low, high, end = self.band
        if not 0 <= zero < low <= high < end:
            what = f"`band` is {self.band}, expected four rising ratios."
            raise ConfigError([Problem("duration_fits", what, "Write [0.4, 0.65, 1.7, 2.6].")])

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        text: Sequence[str | None],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion; None for a row without an English text."""

        def score(index: int, speech: Speech) -> Score:
            expected = expected_seconds(text[index] or "")
            seconds = len(trim_silence(speech.wave)) / RATE
            return within(seconds / expected, self.band) if expected else None

        return self.listen(completions, score, log_metric)


@dataclass
class NotClipped(SpeechReward):
    """Score 1.0 for samples with natural peaks, 0.0 for flat tops.

    Clipped samples are three or more in a row within 1% of the highest peak, on either side. The
    score falls from 1.0 without them to 0.0 at the share `most`. A constant offset or silence
    scores 0.
    """

    most: float = 0.02
    """The share of clipped samples for a score of 0."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec, or an invalid share."""
        super().__post_init__()
        if not 0 < self.most <= 1:
            what = f"`most` is {self.most}, expected a share above 0."
            raise ConfigError([Problem("not_clipped", what, "Write 0.02.")])

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion, or None for an unreadable file."""
        return self.listen(
            completions,
            lambda _, speech: max(0.0, 1 - clipped_share(speech.wave) / self.most),
            log_metric,
        )


def clipped_share(wave: Wave) -> float:
    """Return the share of samples in flat tops; 1.0 for a constant wave."""
    high, low = float(wave.max()), float(wave.min())
    if high - low < 1e-6:
        return 1.0
    margin = 0.005 * (high - low)
    share = 0.0
    for flat in (wave >= high - margin, wave <= low + margin):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], flat.astype(np.int8), [0]])))
        runs = edges[1::2] - edges[::2]
        share += float(runs[runs >= 3].sum()) / len(wave)
    return share
