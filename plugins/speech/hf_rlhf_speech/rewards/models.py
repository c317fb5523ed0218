"""Rewards by small neural networks: presence of speech, and its predicted opinion score.

The networks are ONNX files of other packages, so that nothing else is imported: silero-vad (MIT)
and speechmos (MIT), which has DNSMOS by P.835 (Reddy et al. 2022, arXiv:2110.01763).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, ModelError, Problem
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward, within
from hf_rlhf_speech.speech import Speech

Opinion = Literal["overall", "signal", "background"]
VAD_PACKAGES = ("onnxruntime", "silero_vad")
_VAD_FRAME, _VAD_CONTEXT, _SPOKEN = 512, 64, 0.5
_MARGIN = RATE // 10
"""Margin before and after speech, whose first and last sounds may be too soft to detect."""
_SECONDS = 9.01
_CURVES: Mapping[Opinion, tuple[float, float, float]] = {
    "signal": (-0.08397278, 1.22083953, 0.0052439),
    "background": (-0.13166888, 1.60915514, -0.39604546),
    "overall": (-0.06766283, 1.11546468, 0.04602535),
}
"""Output of the network -> the polynomial of DNSMOS that converts it to a MOS, in their order."""


@lru_cache(maxsize=3)
def _session(package: str, file: str, distribution: str) -> Any:
    """Return a single-threaded ONNX session, cached per process."""
    import onnxruntime

    spec = find_spec(package)
    path = Path(next(iter(spec.submodule_search_locations or ())), file) if spec else None
    if path is None or not path.is_file():
        raise ModelError(
            f"{file} of the package {distribution} is missing. `pip install {distribution}`"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def speech_probabilities(wave: Wave) -> NDArray[np.float32]:
    """Return the probability of speech in each 32 ms of a wave of 16 kHz."""
    count = -(-len(wave) // _VAD_FRAME)
    frames = np.zeros((count, _VAD_FRAME), np.float32)
    frames.reshape(-1)[: len(wave)] = wave
    context = np.zeros((count, _VAD_CONTEXT), np.float32)
    context[1:] = frames[:-1, -_VAD_CONTEXT:]
    state = np.zeros((1, 1, 128), np.float32)
    inputs = {"input": np.concatenate([context, frames], axis=1), "h": state, "c": state}
    session = _session("silero_vad", "data/silero_vad_16k_sequence.onnx", "silero-vad")
    probabilities: NDArray[np.float32] = session.run(["speech_probs"], inputs)[0]
    return probabilities.ravel()


def trim_silence(wave: Wave) -> Wave:
    """Return a wave of 16 kHz from the first to the last speech; empty without speech."""
    spoken = np.flatnonzero(speech_probabilities(wave) >= _SPOKEN)
    if not len(spoken):
        return wave[:0]
    start, end = spoken[0] * _VAD_FRAME - _MARGIN, (spoken[-1] + 1) * _VAD_FRAME + _MARGIN
    return wave[max(0, start) : end]


def longest_silence(wave: Wave) -> float:
    """Return the longest duration without speech in a wave of 16 kHz, its ends included."""
    probabilities = speech_probabilities(wave)
    spoken = np.flatnonzero(probabilities >= _SPOKEN)
    gaps = np.diff(np.concatenate([[-1], spoken, [len(probabilities)]])) - 1
    return float(gaps.max()) * _VAD_FRAME / RATE


def _mos_windows(wave: Wave) -> Iterator[Wave]:
    """Yield segments of 9.01 s, a second apart, as in speechmos: a shorter wave is doubled."""
    size = int(_SECONDS * RATE)
    while len(wave) < size:
        wave = np.concatenate([wave, wave])
    for second in range(int(len(wave) // RATE - _SECONDS) + 1):
        piece = wave[second * RATE : int((second + _SECONDS) * RATE)]
        if len(piece) >= size:
            yield piece


def mean_opinion_scores(wave: Wave) -> Mapping[Opinion, float]:
    """Return the DNSMOS (P.835) of a wave of 16 kHz, 1 to 5: `signal`, `background`, `overall`."""
    session = _session("speechmos", "dnsmos_models/sig_bak_ovr.onnx", "speechmos")
    windows = np.stack([*_mos_windows(wave)]).astype(np.float32)
    raw = session.run(None, {"input_1": windows})[0]
    curves = zip(_CURVES.items(), raw.T, strict=True)
    return {name: float(np.polyval(curve, values).mean()) for (name, curve), values in curves}


@dataclass
class SpeechPresent(SpeechReward):
    """The share of a clip with speech, by a voice activity detector (silero-vad)."""

    packages = VAD_PACKAGES
    threshold: float = 0.5
    """Minimum probability for 32 ms to count as speech."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a share in [0, 1] per completion, or None for an unreadable file."""

        def score(_: int, speech: Speech) -> float:
            return float((speech_probabilities(speech.wave) >= self.threshold).mean())

        return self.listen(completions, score, log_metric)


@dataclass
class AutoMos(SpeechReward):
    """The opinion score predicted by DNSMOS, from 0.0 (MOS 1) to 1.0 (MOS 5).

    The network was trained on noise suppression: it detects noise and distortion, but not prosody
    or words. Silence around the speech is cut off; a clip without any speech is scored as it is.
    """

    packages = (*VAD_PACKAGES, "speechmos")
    part: Opinion = "overall"
    """The kind of opinion by P.835: of the clip, of its speech, or of its background noise."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion, or None for an unreadable file."""

        def score(_: int, speech: Speech) -> float:
            trimmed = trim_silence(speech.wave)
            wave = trimmed if len(trimmed) else speech.wave
            return min(1.0, max(0.0, (mean_opinion_scores(wave)[self.part] - 1) / 4))

        return self.listen(completions, score, log_metric)


@dataclass
class NoLongSilence(SpeechReward):
    """Score 1.0 for speech without long silence at its ends or within, 0.0 for endless silence.

    Uses the longest duration without speech by a voice activity detector: 1.0 up to half of
    `longest`, falling to 0.0 at `longest`.
    """

    packages = VAD_PACKAGES
    longest: float = 1.0
    """Seconds without speech for a score of 0."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an unknown codec, or for `longest` of 0 or less."""
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
        """Return a score in [0, 1] per completion, or None for an unreadable file."""
        band = (-1.0, 0.0, self.longest / 2, self.longest)
        return self.listen(
            completions, lambda _, speech: within(longest_silence(speech.wave), band), log_metric
        )
