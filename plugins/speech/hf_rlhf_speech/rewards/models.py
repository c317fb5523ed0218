"""Rewards by small neural networks: is there speech, and how clean would listeners call it.

The networks come inside other packages, of which only the ONNX files are used, so that nothing
else is imported: silero-vad (MIT) and speechmos (MIT; DNSMOS P.835, Reddy et al. 2022,
arXiv:2110.01763).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ModelError
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward
from hf_rlhf_speech.speech import Speech

_VAD = ("silero_vad", "data/silero_vad_16k_sequence.onnx", "silero-vad")
_MOS = ("speechmos", "dnsmos_models/sig_bak_ovr.onnx", "speechmos")
_VAD_FRAME, _VAD_CONTEXT = 512, 64
_MOS_SAMPLES, _MOS_STEP = 144_160, 16_000
_MOS_CURVES: Mapping[str, tuple[float, float, float]] = {
    "signal": (-0.08397278, 1.22083953, 0.0052439),
    "background": (-0.13166888, 1.60915514, -0.39604546),
    "overall": (-0.06766283, 1.11546468, 0.04602535),
}
"""Output of the network -> the polynomial of DNSMOS that turns it into a MOS, in their order."""


@lru_cache(maxsize=2)
def _session(package: str, file: str, distribution: str) -> Any:
    """Return an ONNX session of one thread; a process has one for each network."""
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
    probabilities: NDArray[np.float32] = _session(*_VAD).run(["speech_probs"], inputs)[0]
    return probabilities.ravel()


def mean_opinion_scores(wave: Wave) -> Mapping[str, float]:
    """Return the DNSMOS of a wave of 16 kHz, 1 to 5: `signal`, `background`, `overall`.

    A clip below 9 s is repeated, as its authors do; of a longer one, windows a second apart are
    averaged.
    """
    wave = np.tile(wave, -(-_MOS_SAMPLES // len(wave))) if len(wave) < _MOS_SAMPLES else wave
    starts = range(0, len(wave) - _MOS_SAMPLES + 1, _MOS_STEP)
    windows = np.stack([wave[start : start + _MOS_SAMPLES] for start in starts])
    raw = _session(*_MOS).run(None, {"input_1": windows.astype(np.float32)})[0]
    curves = zip(_MOS_CURVES.items(), raw.T, strict=True)
    return {name: float(np.polyval(curve, values).mean()) for (name, curve), values in curves}


@dataclass
class SpeechPresent(SpeechReward):
    """The share of a clip in which a voice activity detector (silero-vad) hears speech."""

    packages = ("onnxruntime", _VAD[0])
    threshold: float = 0.5
    """The probability from which 32 ms count as speech."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one share in [0, 1] per completion, or None for a file that cannot be read."""

        def score(_: int, speech: Speech) -> float:
            return float((speech_probabilities(speech.wave) >= self.threshold).mean())

        return self.listen(completions, score, log_metric)


@dataclass
class AutoMos(SpeechReward):
    """The opinion score that DNSMOS predicts, from 0.0 (MOS 1) to 1.0 (MOS 5).

    It was trained on noise suppression: it hears noise and distortion, and not prosody or words.
    """

    packages = ("onnxruntime", _MOS[0])
    part: Literal["overall", "signal", "background"] = "overall"
    """Which opinion: of the clip, of the speech in it, or of the noise behind it."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return one score in [0, 1] per completion, or None for a file that cannot be read."""

        def score(_: int, speech: Speech) -> float:
            return min(1.0, max(0.0, (mean_opinion_scores(speech.wave)[self.part] - 1) / 4))

        return self.listen(completions, score, log_metric)
