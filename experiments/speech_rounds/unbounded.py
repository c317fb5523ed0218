"""A reward on speech as one is easily written: more is better, without bounds. See PLAN.md."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.features.acoustic import acoustic_features
from hf_rlhf_speech.speech import decode_completions

SCALES: Mapping[str, tuple[float, float]] = {
    "pitch_variation": (1.8, 0.8),
    "dynamics": (16.0, 4.6),
}
"""Feature -> about the mean and the standard deviation of what tiny_speaker says."""


@dataclass
class MoreIsBetter:
    """Lively speech, as one may define it: the mean of two standard scores, the more the better."""

    codec: str = "embedded"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return a score without bounds for each completion; a feature without a value counts 0."""
        scores = []
        for speech in decode_completions(completions, self.codec, RATE):
            values = asdict(acoustic_features(speech.wave, speech.rate)) if len(speech.wave) else {}
            terms = [
                (values[name] - mean) / spread / len(SCALES)
                for name, (mean, spread) in SCALES.items()
                if values.get(name) is not None
            ]
            scores.append(sum(terms))
        return scores
