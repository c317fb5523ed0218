"""Compare acoustic features with natural speech: `acoustic_quality`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, Problem, did_you_mean
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward, within
from hf_rlhf_speech.speech import Speech

BANDS: Mapping[str, tuple[float, float, float, float]] = {
    "pitch_variation": (0.2, 1.2, 4.0, 8.0),
    "harmonicity": (1.0, 8.0, 17.0, 25.0),
    "voiced": (0.1, 0.35, 0.87, 1.0),
    "dynamics": (5.0, 16.0, 36.0, 45.0),
    "stability": (0.3, 0.6, 0.87, 1.0),
    "centroid": (500.0, 1000.0, 2400.0, 3200.0),
    "silence": (-1.0, 0.0, 0.2, 0.5),
}
"""Feature -> the values at which its score is 0, 1, 1 and 0 again; the middle is the range of clear
speech of espeak-ng's voices and of people."""
WEIGHTS: Mapping[str, float] = {
    "pitch_variation": 0.14,
    "harmonicity": 0.31,
    "stability": 0.55,
}
"""Fitted to planted flaws (experiments/speech_validation/RESULTS.md), without dropped features."""


@dataclass
class AcousticQuality(SpeechReward):
    """How natural speech sounds by its acoustic features alone, from 0 to 5; words do not count.

    Five times the weighted mean of the features' scores. Each is 1 within the range of natural
    speech and falls to 0 on both sides, so no feature can be driven up without limit: a sine is
    perfectly harmonic and voiced, and earns nothing. A feature without a value scores 0.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: dict(WEIGHTS))
    """Feature of `acoustic_features` -> weight, at least 0; normalised by their sum."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec or feature, or invalid weights."""
        super().__post_init__()
        for name, weight in self.weights.items():
            where = f"acoustic_quality, weights.{name}"
            if name not in BANDS:
                what = f"there is no such feature{did_you_mean(name, BANDS)}."
                raise ConfigError([Problem(where, what, f"Features: {', '.join(BANDS)}.")])
            if not 0 <= weight < float("inf"):
                raise ConfigError([Problem(where, f"is {weight}, expected 0 or more.")])
        if not sum(self.weights.values()):
            what = "no feature has a weight above 0."
            raise ConfigError([Problem("acoustic_quality, weights", what, "Leave it out.")])

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 5] per completion, or None for an unreadable file."""
        total = sum(self.weights.values())

        def score(_: int, speech: Speech) -> float:
            values = asdict(speech.features)
            parts = (
                weight * within(values[name], BANDS[name]) for name, weight in self.weights.items()
            )
            return 5 * sum(parts) / total

        return self.listen(completions, score, log_metric)
