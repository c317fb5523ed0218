"""The input of a reward model's head: acoustic features, or an embedding.

An encoder is frozen, so each process computes a clip's embedding once.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import transformers

from hf_rlhf.data import text_of
from hf_rlhf_speech import features
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.audio_reward.feature_scorer import AcousticFeatureExtractor
from hf_rlhf_speech.speech import clip_key, decode_completions

ENCODERS = ("hubert", "wav2vec2", "wavlm")
"""Model types whose classifiers pool a linear projection over time, as ours does."""
_SHORTEST = 0.1
"""Minimum seconds; shorter clips are padded with silence. A frame of these encoders takes 0.025."""
_AT_ONCE = 64
_KEPT = 20_000
"""Clips with cached vectors per process, about 0.1 GB for a large encoder."""


def head_scores(model: Any, vectors: torch.Tensor) -> torch.Tensor:
    """Return the score of each vector, [clips]; for a mean embedding, the whole model's score."""
    projected = model.projector(vectors.to(model.dtype))
    scores: torch.Tensor = model.classifier(projected).squeeze(-1).float()
    return scores


@torch.inference_mode()
def vector_of(model: Any, extractor: Any, wave: Wave) -> torch.Tensor:
    """Return the vector of a clip at the extractor's rate.

    Clips are read individually, because padding would change an encoder with group normalisation.
    """
    rate = extractor.sampling_rate
    wave = np.pad(wave, (0, max(0, round(_SHORTEST * rate) - len(wave))))
    values: torch.Tensor = extractor(wave, sampling_rate=rate, return_tensors="pt").input_values
    if not isinstance(extractor, AcousticFeatureExtractor):
        values = model.base_model(values.to(model.device, model.dtype)).last_hidden_state.mean(1)
    return values[0].to(model.device, torch.float32)


@dataclass(frozen=True)
class Clip:
    """The cached sound of a completion."""

    vector: torch.Tensor
    milliseconds: int


def read_clips(
    model: Any, extractor: Any, completions: Sequence[Any], codec: str
) -> list[Clip | None]:
    """Return the clip of each completion, None for a completion without sound.

    A process decodes a clip and computes its vector once, up to the size of the cache.
    """
    if model not in _identities:
        _identities[model] = _identity(model, extractor)
    identity, rate = _identities[model], extractor.sampling_rate
    keys = [_digest(identity, clip_key(text_of(each), codec, rate)) for each in completions]
    clips = {key: _clips[key] for key in keys if key in _clips}
    new = {key: each for key, each in zip(keys, completions, strict=True) if key not in clips}
    for start in range(0, len(new), _AT_ONCE):
        some = list(new.items())[start : start + _AT_ONCE]
        speech = decode_completions([each for _, each in some], codec, rate)
        for (key, _), each in zip(some, speech, strict=True):
            clips[key] = None
            if len(each.wave):
                vector = vector_of(model, extractor, each.wave).cpu().clone()
                clips[key] = Clip(vector, round(1000 * each.seconds))
    _clips.update(clips)
    for key in list(_clips)[:-_KEPT]:
        del _clips[key]
    return [clips[key] for key in keys]


_identities: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_clips: dict[bytes, Clip | None] = {}
"""By a digest, because the texts of completions are long."""


def _digest(*parts: Hashable) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()


def _identity(model: Any, extractor: Any) -> str:
    """Return a digest of what determines a vector: weights, or the code of the features."""
    digest = hashlib.sha256(f"{transformers.__version__}{extractor.to_json_string()}".encode())
    if isinstance(extractor, AcousticFeatureExtractor):
        for file in sorted(Path(str(features.__file__)).parent.glob("*.py")):
            digest.update(file.read_bytes())
    else:
        digest.update(model.config.to_json_string().encode())
        for _, weight in sorted(model.base_model.state_dict().items()):
            digest.update(weight.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
