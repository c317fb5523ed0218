"""Compare the voice with a reference clip: `speaker_similarity`.

The default network is Resemblyzer's 0.1.4 (Apache-2.0; GE2E, Wan et al. 2018, arXiv:1710.10467);
only the weights of the package are used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.contracts import Score
from hf_rlhf.errors import ConfigError, ModelError, Problem, first_line
from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.codecs.codec import FILE
from hf_rlhf_speech.rewards.listening import Metric, SpeechReward
from hf_rlhf_speech.speech import Speech, decode_completions

Embed = Callable[[Wave], Any]
"""A wave -> a tensor [dimensions] of length 1 that represents its voice."""
_STRETCH, _STEP, _HOP = 160, 77, RATE // 100
"""Window of the network in frames of 10 ms (1.6 s), and the step between windows."""


@dataclass
class SpeakerSimilarity(SpeechReward):
    """Return the cosine between the voices of a clip and the row's `reference_audio`.

    The range is 0 to 1 for Resemblyzer's network, -1 to 1 for others. Words do not count.
    """

    model: str | None = field(default=None, kw_only=True)
    """Folder or Hub id of a network of transformers with an x-vector head, such as
    `microsoft/wavlm-base-plus-sv`; by default Resemblyzer's."""
    revision: str | None = field(default=None, kw_only=True)
    """Hub revision: a branch, tag or commit."""
    _loaded: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check what can be known before weights load. Raises ConfigError and ModelError."""
        from hf_rlhf.models import find_model

        super().__post_init__()
        if self.model is not None:
            find_model(self.model)
        elif find_spec("resemblyzer") is None:
            what = "SpeakerSimilarity needs the weights in the package resemblyzer."
            fix = "`pip install --no-deps resemblyzer` (without dependencies), or `model`."
            raise ConfigError([Problem("rewards", what, fix)])

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        reference_audio: Sequence[str | None],
        log_metric: Metric | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a cosine per completion; None without a readable reference clip.

        Raises ModelError for a network without a trained x-vector head.
        """
        self._loaded = self._loaded or self._load()
        embed, rate = self._loaded
        paths = [path for path in dict.fromkeys(reference_audio) if path]
        clips = zip(paths, decode_completions(paths, FILE, rate), strict=True)
        voices: dict[str | None, Any] = {
            path: embed(clip.wave) for path, clip in clips if len(clip.wave)
        }

        def score(index: int, speech: Speech) -> Score:
            voice = voices.get(reference_audio[index])
            return None if voice is None else float(embed(speech.wave) @ voice)

        scores = self.listen(completions, score, log_metric, rate)
        known = [path in voices for path in reference_audio]
        if log_metric is not None:
            log_metric("speech/no_reference", known.count(False) / max(1, len(known)))
        return [each if there else None for each, there in zip(scores, known, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _load(self) -> tuple[Embed, int]:
        """Return the embedding function and the sampling rate of its input."""
        from accelerate import PartialState

        device = self.device or PartialState().device
        if self.model is None:
            return resemblyzer(device), RATE
        return _x_vectors(self.model, self.revision, device)


def resemblyzer(device: Any) -> Embed:
    """Return Resemblyzer's embedding, the mean over windows of 1.6 s. Raises ModelError."""
    import torch
    from torch.nn.functional import normalize
    from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

    spec = find_spec("resemblyzer")
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0] if folders else "", "pretrained.pt")
    if not path.is_file():
        raise ModelError(f"speaker_similarity: {path} of the package resemblyzer is missing.")
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    network = torch.nn.ModuleDict({"lstm": lstm, "linear": linear})
    weights = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    network.load_state_dict({key: weights[key] for key in network.state_dict()})
    network.to(device).eval()
    window = window_function(400, "hann")
    bands = mel_filter_bank(201, 40, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney")
    shape = {"frame_length": 400, "hop_length": _HOP, "power": 2.0, "pad_mode": "constant"}

    def embed(wave: Wave) -> Any:
        # A quiet clip is amplified to -30 dBFS.
        wave = wave * max(1.0, 10 ** (-30 / 20) / max(1e-6, float(np.sqrt(np.mean(wave**2)))))
        wave = np.pad(wave, (0, max(0, _STRETCH * _HOP - len(wave))))
        mels = spectrogram(wave, window, mel_filters=bands, **shape).T
        starts = range(0, len(mels) - _STRETCH + 1, _STEP)
        heard = np.stack([mels[start : start + _STRETCH] for start in starts])
        with torch.inference_mode():
            hidden = lstm(torch.from_numpy(heard.astype(np.float32)).to(device))[1][0][-1]
            return normalize(normalize(linear(hidden).relu(), dim=1).mean(0), dim=0)

    return embed


def _x_vectors(model: str, revision: str | None, device: Any) -> tuple[Embed, int]:
    import torch
    from transformers import AutoFeatureExtractor, AutoModelForAudioXVector

    from hf_rlhf.distributed import whole_weights
    from hf_rlhf.models import resolve_model_path

    path, at = resolve_model_path(model), {"revision": revision}
    try:
        with whole_weights():
            network, loading = AutoModelForAudioXVector.from_pretrained(
                path, output_loading_info=True, **at
            )
        extractor = AutoFeatureExtractor.from_pretrained(path, **at)
        if loading["missing_keys"]:
            raise ValueError(
                f"it lacks weights for {', '.join(sorted(loading['missing_keys'])[:3])}."
            )
    except (OSError, ValueError) as error:
        raise ModelError(
            f"speaker_similarity: {model} is no network with a trained x-vector head: "
            f"{first_line(error)} Name one for speaker verification."
        ) from error
    network.to(device).eval()
    rate = int(extractor.sampling_rate)

    def embed(wave: Wave) -> Any:
        # Its convolutions need a third of a second: a short sound is repeated.
        wave = np.resize(wave, rate) if len(wave) < rate else wave
        inputs = extractor(wave, sampling_rate=rate, return_tensors="pt").to(device)
        with torch.inference_mode():
            return torch.nn.functional.normalize(network(**inputs).embeddings[0], dim=0)

    return embed, rate
