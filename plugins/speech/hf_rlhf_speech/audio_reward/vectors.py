"""What a reward model knows of a clip before its head: acoustic features, or an embedding.

An encoder is frozen, so a clip has one embedding: it is kept on disk, by the content of the clip
and of the encoder, in `$HF_RLHF_CACHE` or the user's cache folder.
"""

import hashlib
import os
import sqlite3
from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
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
"""Seconds; a shorter clip gets silence at its end. One frame of these encoders takes 0.025."""
_AT_ONCE = 64


def head_scores(model: Any, vectors: torch.Tensor) -> torch.Tensor:
    """Return the score of each vector, [clips]; of a mean embedding it is the whole model's."""
    scores: torch.Tensor = model.classifier(model.projector(vectors)).squeeze(-1).float()
    return scores


@torch.inference_mode()
def vector_of(model: Any, extractor: Any, wave: Wave) -> torch.Tensor:
    """Return the vector of a clip at the extractor's rate.

    Clips are read one by one: padding would change an encoder with group normalisation.
    """
    rate = extractor.sampling_rate
    wave = np.pad(wave, (0, max(0, round(_SHORTEST * rate) - len(wave))))
    values: torch.Tensor = extractor(wave, sampling_rate=rate, return_tensors="pt").input_values
    if not isinstance(extractor, AcousticFeatureExtractor):
        values = model.base_model(values.to(model.device, model.dtype)).last_hidden_state.mean(1)
    return values[0].to(model.device, torch.float32)


@dataclass(frozen=True)
class Clip:
    """What is kept of a completion's sound."""

    vector: torch.Tensor
    milliseconds: int


def read_clips(
    model: Any, extractor: Any, completions: Sequence[Any], codec: str
) -> list[Clip | None]:
    """Return the clip of each completion, None for one without sound.

    A clip is decoded once in a process, and its vector computed once on a machine.
    """
    if model not in _identities:
        _identities[model] = _identity(model, extractor)
    identity, rate = _identities[model], extractor.sampling_rate
    keys = [(identity, clip_key(text_of(each), codec, rate)) for each in completions]
    new = {key: each for key, each in zip(keys, completions, strict=True) if key not in _clips}
    for start in range(0, len(new), _AT_ONCE):
        some = list(new.items())[start : start + _AT_ONCE]
        speech = decode_completions([each for _, each in some], codec, rate)
        vectors = _vectors(model, extractor, identity, [each.wave for each in speech])
        for (key, _), each, vector in zip(some, speech, vectors, strict=True):
            sounds = len(each.wave) > 0
            _clips[key] = Clip(vector, round(1000 * each.seconds)) if sounds else None
    return [_clips[key] for key in keys]


_identities: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_clips: dict[Hashable, Clip | None] = {}


def _vectors(
    model: Any, extractor: Any, identity: str, waves: Sequence[Wave]
) -> Iterator[torch.Tensor]:
    path = _folder() / f"{identity}.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=60)) as cache, cache:
        cache.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")
        for wave in waves:
            key = hashlib.sha256(wave.tobytes()).digest()
            row = cache.execute("SELECT vector FROM vectors WHERE key = ?", (key,)).fetchone()
            if row is None:
                vector = vector_of(model, extractor, wave).cpu().numpy().astype(np.float32)
                row = (vector.tobytes(),)
                cache.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?)", (key, *row))
            yield torch.from_numpy(np.frombuffer(row[0], np.float32).copy())


def _folder() -> Path:
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("HF_RLHF_CACHE") or xdg / "hf_rlhf") / "speech_vectors"


def _identity(model: Any, extractor: Any) -> str:
    """Return a digest of all that decides a vector: weights, or the code of the features."""
    digest = hashlib.sha256(f"{transformers.__version__}{extractor.to_json_string()}".encode())
    if isinstance(extractor, AcousticFeatureExtractor):
        for file in sorted(Path(str(features.__file__)).parent.glob("*.py")):
            digest.update(file.read_bytes())
    else:
        digest.update(model.config.to_json_string().encode())
        for _, weight in sorted(model.base_model.state_dict().items()):
            digest.update(weight.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
