"""What all rewards on speech share: the codec, and when there is a score at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.codecs.codec import check_codec
from hf_rlhf_speech.speech import Speech, decode_completions, log_speech

Metric = Callable[[str, float], None]


@dataclass
class SpeechReward:
    """Scores the sound of a completion at 16 kHz: 0.0 without any speech tokens, and None for a
    file that cannot be read."""

    codec: str = "embedded"
    """How completions hold speech: a codec by name, or `file` if each is the path of a WAV or FLAC
    file."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec."""
        check_codec(self.codec)

    def listen(
        self,
        completions: Sequence[Any],
        score: Callable[[int, Speech], Score],
        log_metric: Metric | None,
        rate: int = RATE,
    ) -> list[Score]:
        """Return `score(index, speech)` of each completion that has sound, and log its problems."""
        speech = decode_completions(completions, self.codec, rate)
        log_speech(speech, log_metric)
        scores: list[Score] = []
        for index, each in enumerate(speech):
            readable = None if each.unreadable else 0.0
            scores.append(score(index, each) if len(each.wave) else readable)
        return scores


def within(value: float | None, band: tuple[float, float, float, float]) -> float:
    """Return 1.0 between the two middle bounds, falling to 0.0 at the outer ones; 0.0 for None."""
    if value is None:
        return 0.0
    zero, low, high, end = band
    return max(0.0, min(1.0, (value - zero) / (low - zero), (end - value) / (end - high)))
