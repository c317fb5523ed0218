"""The contract of a codec, its tokens as text, and the registry of codecs."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.config import load_component
from hf_rlhf.errors import ConfigError, ModelError, Problem, UnknownPlugin
from hf_rlhf.models import find_model
from hf_rlhf_speech.audio import Wave

Codes = NDArray[np.int64]
"""Indices of a single utterance, [frames, codebooks], each in [0, size)."""


PROBLEMS = ("no speech", "not speech", "wrong tokens", "no end", "early end")
"""Defects of a text as speech: nothing to decode, other text between the tokens, unknown or
misplaced tokens, no end token, text after it."""


@dataclass(frozen=True)
class TextForm:
    """The text form of a policy's speech: `<|speech|><|s_7|><|s_12|><|/speech|>`.

    With several codebooks a frame's indices are consecutive, and codebook `k` starts at `first + k
    * size`.
    """

    token: str = "<|s_{}|>"
    start: str = "<|speech|>"
    end: str | None = "<|/speech|>"
    """None: the end is the end-of-sequence token, which completions lack."""
    first: int = 0
    """The number in the first codebook's token of index 0."""

    def tokens(self, count: int) -> list[str]:
        """Return the tokens of the first `count` indices; a codec has codebooks * size of them."""
        return [self.token.format(self.first + index) for index in range(count)]

    def write(self, codes: Codes, size: int) -> str:
        """Return codes [frames, codebooks] as text."""
        indices = self.first + codes + size * np.arange(codes.shape[1])
        tokens = "".join(map(self.token.format, indices.ravel().tolist()))
        return f"{self.start}{tokens}{self.end or ''}"

    def read(self, text: str, codebooks: int, size: int) -> tuple[Codes, tuple[str, ...]]:
        """Return the codes in `text`, and its defects from `PROBLEMS`.

        Reading begins after the start token, or at the beginning without it, because a prompt may
        end with the token. It stops at the end token.
        """
        speech = text.split(self.start, 1)[-1]
        problems = []
        if self.end is not None:
            speech, ended, rest = speech.partition(self.end)
            problems += ["no end"] * (not ended) + ["early end"] * bool(rest.strip())
        pattern = re.escape(self.token).replace(r"\{\}", r"(\d{1,9})")
        parts = re.split(pattern, speech)
        problems += ["not speech"] * any(part.strip() for part in parts[::2])
        indices = np.array(parts[1::2], dtype=np.int64) - self.first
        codes = _frames(indices, codebooks, size)
        problems += ["wrong tokens"] * (codes.size < len(indices))
        problems += ["no speech"] * (not len(codes))
        return codes, tuple(problems)


def _frames(indices: NDArray[np.int64], codebooks: int, size: int) -> Codes:
    """Return the complete frames, without misplaced tokens."""
    if codebooks == 1:
        return indices[(indices >= 0) & (indices < size)][:, None]
    kept: list[int] = []
    for index in indices.tolist():
        if index // size == len(kept) % codebooks:
            kept.append(index % size)
    frames = len(kept) // codebooks
    return np.array(kept[: frames * codebooks], dtype=np.int64).reshape(frames, codebooks)


class Codec(Protocol):
    """Converts speech to discrete codes and back; `hf_rlhf_speech.testing.check_codec` checks it.

    An entry point in the group `hf_rlhf.codecs` refers to a callable that returns a codec. It may
    have two parameters with defaults: `source`, the folder or Hub id of `codec: NAME:SOURCE`, and
    `device` of a network; None means the policy's device. Its module imports nothing heavy.
    """

    name: str
    rate: int
    """Sampling rate of the waves."""
    codebooks: int
    """Indices per frame."""
    size: int
    """Entries per codebook."""
    frame_rate: float
    """Frames per second; a second is frame_rate * codebooks tokens."""
    form: TextForm
    """How a language model's tokens represent the indices of a frame."""

    def encode(self, waves: Sequence[Wave]) -> list[Codes]:
        """Return the codes of each wave, int64 [frames, codebooks] in [0, size).

        A wave is float32 [samples] in [-1, 1] at `rate`. Its codes do not depend on the others.
        """
        ...

    def decode(self, codes: Sequence[Codes]) -> list[Wave]:
        """Return the wave of each utterance, float32 [samples] in [-1, 1] at `rate`.

        It lasts frames / frame_rate seconds, and does not depend on the other utterances.
        """
        ...


FILE = "file"
"""No codec: a completion is the path of a sound file."""


def load_codec(name: str, device: str | None = None) -> Codec:
    """Return the codec `name` or `name:FOLDER_OR_HUB_ID`; raise ConfigError if there is none."""
    return _load(name, device)


@lru_cache(maxsize=4)
def _load(name: str, device: str | None) -> Codec:
    # The cache of `load_codec` itself would load a codec again if `device` is left out.
    make, source = _find(name)
    accepted = inspect.signature(make).parameters
    given = {"source": source or None, "device": device}
    return make(**{key: value for key, value in given.items() if value and key in accepted})


def check_codec(name: str) -> None:
    """Raise ConfigError if there is no codec of this name or in this folder, without loading it."""
    if name != FILE:
        _find(name)


def _find(name: str) -> tuple[Callable[..., Codec], str]:
    """Return the codec's factory, and the folder or Hub id in its name."""
    kind, colon, source = name.partition(":")
    try:
        make: Callable[..., Codec] = load_component("codecs", kind)
    except UnknownPlugin as error:
        fix = "Codecs: `hf-rlhf list codecs`, and `file`, which takes no folder."
        what = f"there is no codec {name!r}: {error}"
        raise ConfigError([Problem("codec", what, fix)]) from error
    if colon and "source" not in inspect.signature(make).parameters:
        what = f"is {name!r}, and {kind} takes no folder or Hub id."
        raise ConfigError([Problem("codec", what, f"Write `codec: {kind}`.")])
    try:
        if source:
            find_model(source)
    except ModelError as error:
        fix = f"Write `codec: {kind}:FOLDER`, or a Hub id in its place."
        raise ConfigError([Problem("codec", f"is {name!r}: {error}", fix)]) from error
    return make, source
