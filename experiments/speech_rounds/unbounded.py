"""A reward on speech as one is easily written: more is better, without bounds. See PLAN.md."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.features.acoustic import acoustic_features
from hf_rlhf_speech.rewards.quality import WEIGHTS
from hf_rlhf_speech.speech import decode_completions

SCALES: Mapping[str, tuple[float, float]] = {
    "pitch_variation": (3.0, 1.0),
    "harmonicity": (13.0, 3.0),
    "voiced": (0.7, 0.1),
    "dynamics": (26.0, 5.0),
    "stability": (0.75, 0.06),
}
"""Feature -> about the mean and the standard deviation of clean speech of tiny_speaker."""


@dataclass
class MoreIsBetter:
    """The sum of `acoustic_quality` with standard scores of the features for their bands."""

    codec: str = "embedded"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return a score without bounds for each completion; a feature without a value counts 0."""
        scores = []
        for speech in decode_completions(completions, self.codec, RATE):
            values = asdict(acoustic_features(speech.wave, speech.rate)) if len(speech.wave) else {}
            terms = [
                WEIGHTS[name] * (values[name] - mean) / spread
                for name, (mean, spread) in SCALES.items()
                if values.get(name) is not None
            ]
            scores.append(sum(terms))
        return scores
