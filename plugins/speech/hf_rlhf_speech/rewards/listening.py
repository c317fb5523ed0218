"""Common base of speech rewards: the codec, and when there is a score."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_speech.audio import RATE
from hf_rlhf_speech.codecs.codec import check_codec
from hf_rlhf_speech.codecs.policy import codec_problems
from hf_rlhf_speech.speech import Speech, decode_completions, log_speech

if TYPE_CHECKING:
    from hf_rlhf.runs import Run

Metric = Callable[[str, float], None]


@dataclass
class SpeechReward:
    """Score a completion's sound at 16 kHz: 0.0 without speech, None for an unreadable file."""

    codec: str = "embedded"
    """The form of speech in completions: the name of a codec, or `file` if each is the path of a
    sound file."""

    device: str | None = field(default=None, kw_only=True)
    """Device of the codec's network, for example `cuda:1`; by default the policy's."""

    packages: ClassVar[tuple[str, ...]] = ()
    """Modules imported only when scoring."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec or a missing package."""
        check_codec(self.codec)
        self.require("soundfile", "soxr", *self.packages)

    def require(self, *modules: str) -> None:
        """Raise ConfigError for a missing module."""
        for module in modules:
            if find_spec(module) is None:
                name, what = module.replace("_", "-"), f"{type(self).__name__} needs"
                what = f"{what} the package {name}, which is not installed."
                raise ConfigError([Problem("rewards", what, f"`pip install {name}`.")])

    def problems(self, run: "Run") -> Iterator[Problem]:
        """Yield why the run's policy cannot speak in the codec."""
        if run.writes_text:
            yield from codec_problems(run, self.codec)

    def listen(
        self,
        completions: Sequence[Any],
        score: Callable[[int, Speech], Score],
        log_metric: Metric | None,
        rate: int = RATE,
        prepare: Callable[[Sequence[Speech]], None] | None = None,
    ) -> list[Score]:
        """Return `score(index, speech)` of each completion with sound.

        `prepare` is called first with all of them, for batched work. Logs their defects and the
        seconds of speech scored per second. The first audio reward of a run also decodes them.
        """
        started = perf_counter()
        speech = decode_completions(completions, self.codec, rate, self.device)
        if prepare is not None:
            prepare([each for each in speech if len(each.wave)])
        scores: list[Score] = []
        for index, each in enumerate(speech):
            readable = None if each.unreadable else 0.0
            scores.append(score(index, each) if len(each.wave) else readable)
        log_speech(speech, log_metric)
        if log_metric is not None:
            speed = sum(each.seconds for each in speech) / (perf_counter() - started)
            log_metric(f"speech/seconds_per_second/{type(self).__name__}", speed)
        return scores


def within(value: float | None, band: tuple[float, float, float, float]) -> float:
    """Return 1.0 between the middle bounds, falling to 0.0 at the outer bounds; 0.0 for None."""
    if value is None:
        return 0.0
    zero, low, high, end = band
    return max(0.0, min(1.0, (value - zero) / (low - zero), (end - value) / (end - high)))
