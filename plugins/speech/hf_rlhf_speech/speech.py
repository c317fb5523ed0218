"""The speech in completions, decoded once for all audio rewards of a run."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hf_rlhf.data import text_of
from hf_rlhf.errors import DataError
from hf_rlhf_speech.audio import MAX_SECONDS, RATE, Wave, read_audio, resample
from hf_rlhf_speech.codecs.codec import FILE, PROBLEMS, Codes, load_codec
from hf_rlhf_speech.features.acoustic import Features, acoustic_features

TOO_LONG, UNREADABLE = "too long", "unreadable"
CACHED = 512
"""Utterances in the cache: 3 s of speech are 0.2 MB."""


@dataclass(frozen=True, eq=False)
class Speech:
    """The sound of a completion. Without any speech tokens it has no samples."""

    wave: Wave
    rate: int
    problems: tuple[str, ...] = ()
    """The defects of the completion as speech, in short."""
    unreadable: str | None = None
    """Why a file could not be read: no fault of a policy, so a reward abstains."""

    @cached_property
    def features(self) -> Features:
        """Return the acoustic features, measured once."""
        return acoustic_features(self.wave, self.rate)

    @property
    def seconds(self) -> float:
        """Return the duration."""
        return len(self.wave) / self.rate


class _Cache:
    """The last used utterances of this process; a pickled reward does not carry them."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, Speech] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Speech | None:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Hashable, speech: Speech) -> None:
        with self._lock:
            self._entries[key] = speech
            while len(self._entries) > CACHED:
                self._entries.popitem(last=False)


_cache = _Cache()


def decode_completions(
    completions: Sequence[Any],
    codec: str = "embedded",
    rate: int | None = RATE,
    device: str | None = None,
) -> list[Speech]:
    """Return the speech of each completion, at `rate` or (None) at the codec's own.

    With the codec `file`, a completion is the path of a sound file; an unreadable file is
    `unreadable`. At most 30 s are decoded, by a network on `device`; None means the policy's.
    """
    texts = [text_of(completion) for completion in completions]
    keys = [clip_key(text, codec, rate) for text in texts]
    speech = {key: cached for key in keys if (cached := _cache.get(key)) is not None}
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in speech}
    texts = list(missing.values())
    new = _read_files(texts, rate) if codec == FILE else _decode(texts, codec, rate, device)
    for key, each in zip(missing, new, strict=True):
        speech[key] = each
        _cache.put(key, each)
    return [speech[key] for key in keys]


def clip_key(text: str, codec: str, rate: int | None) -> Hashable:
    """Return the key of a sound: the text, and for a file its time and size."""
    if codec != FILE:
        return codec, rate, text
    try:
        status = os.stat(text.strip())
    except (OSError, ValueError):  # ValueError: a null byte
        return codec, rate, text
    return codec, rate, text, status.st_mtime_ns, status.st_size


def _read_files(texts: Sequence[str], rate: int | None) -> list[Speech]:
    return [_read_file(text.strip(), rate) for text in texts]


def _read_file(path: str, rate: int | None) -> Speech:
    nothing = np.zeros(0, np.float32)
    if not path:
        return Speech(nothing, rate or RATE, ("no speech",))
    try:
        clip = read_audio(path, rate=rate)
    except (DataError, OSError, ValueError) as error:
        return Speech(nothing, rate or RATE, (UNREADABLE,), unreadable=str(error))
    return Speech(clip.wave, clip.rate)


def _decode(texts: Sequence[str], name: str, rate: int | None, device: str | None) -> list[Speech]:
    if not texts:
        return []
    codec = load_codec(name, device)
    limit = int(MAX_SECONDS * codec.frame_rate)
    codes: list[Codes] = []
    problems: list[tuple[str, ...]] = []
    for text in texts:
        frames, wrong = codec.form.read(text, codec.codebooks, codec.size)
        codes.append(frames[:limit])
        problems.append((*wrong, *[TOO_LONG] * (len(frames) > limit)))
    spoken = [index for index, frames in enumerate(codes) if len(frames)]
    waves = dict(zip(spoken, codec.decode([codes[index] for index in spoken]), strict=True))
    nothing = np.zeros(0, np.float32)
    return [
        Speech(resample(waves.get(index, nothing), codec.rate, rate or codec.rate), *rest)
        for index, rest in enumerate((rate or codec.rate, wrong) for wrong in problems)
    ]


def log_speech(speech: Sequence[Speech], log_metric: Callable[[str, float], None] | None) -> None:
    """Log the mean duration and the share of completions with each problem: `speech/no_end`."""
    if log_metric is None or not speech:
        return
    log_metric("speech/seconds", sum(each.seconds for each in speech) / len(speech))
    # Always log all of them: processes that log different names wait for each other.
    for problem in (*PROBLEMS, TOO_LONG, UNREADABLE):
        share = sum(problem in each.problems for each in speech) / len(speech)
        log_metric(f"speech/{problem.replace(' ', '_')}", share)
