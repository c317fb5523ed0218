"""What a codec is, its tokens as text, and the codecs by name."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.errors import ConfigError, ModelError, Problem, did_you_mean
from hf_rlhf.models import find_model
from hf_rlhf_speech.audio import Wave

Codes = NDArray[np.int64]
"""Indices of one utterance, [frames, codebooks], each in [0, size)."""


PROBLEMS = ("no speech", "not speech", "wrong tokens", "no end", "early end")
"""What can be wrong with a text as speech: nothing to decode, other text between the tokens, tokens
that the codec lacks or that are out of turn, no end token, text behind it."""


@dataclass(frozen=True)
class TextForm:
    """How a policy writes speech: `<|speech|><|s_7|><|s_12|><|/speech|>`.

    Of several codebooks a frame's indices follow each other, and those of codebook `k` begin at
    `k * size`.
    """

    token: str = "<|s_{}|>"
    start: str = "<|speech|>"
    end: str | None = "<|/speech|>"
    """None: the end is the end-of-sequence token, which the completion no longer has."""

    def write(self, codes: Codes, size: int) -> str:
        """Return codes [frames, codebooks] as text."""
        indices = codes + size * np.arange(codes.shape[1])
        tokens = "".join(map(self.token.format, indices.ravel().tolist()))
        return f"{self.start}{tokens}{self.end or ''}"

    def read(self, text: str, codebooks: int, size: int) -> tuple[Codes, tuple[str, ...]]:
        """Return the codes in `text`, and which of `PROBLEMS` it has.

        Reading begins behind the start token, or at once if there is none, since a prompt may end
        with it, and stops at the end token.
        """
        speech = text.split(self.start, 1)[-1]
        problems = []
        if self.end is not None:
            speech, ended, rest = speech.partition(self.end)
            problems += ["no end"] * (not ended) + ["early end"] * bool(rest.strip())
        pattern = re.escape(self.token).replace(r"\{\}", r"(\d{1,9})")
        parts = re.split(pattern, speech)
        problems += ["not speech"] * any(part.strip() for part in parts[::2])
        indices = np.array(parts[1::2], dtype=np.int64)
        codes = _frames(indices, codebooks, size)
        problems += ["wrong tokens"] * (codes.size < len(indices))
        problems += ["no speech"] * (not len(codes))
        return codes, tuple(problems)


def _frames(indices: NDArray[np.int64], codebooks: int, size: int) -> Codes:
    """Return the complete frames, without tokens that are out of turn."""
    if codebooks == 1:
        return indices[indices < size][:, None]
    kept: list[int] = []
    for index in indices.tolist():
        if index // size == len(kept) % codebooks:
            kept.append(index % size)
    frames = len(kept) // codebooks
    return np.array(kept[: frames * codebooks], dtype=np.int64).reshape(frames, codebooks)


class Codec(Protocol):
    """Turns speech into discrete codes and back."""

    name: str
    rate: int
    """Samples per second."""
    codebooks: int
    size: int
    """Entries of a codebook."""
    frame_rate: float
    """Frames per second; a frame has one index of each codebook."""
    form: TextForm

    def encode(self, waves: Sequence[Wave]) -> list[Codes]:
        """Return the codes [frames, codebooks] of each wave, which has `rate`."""
        ...

    def decode(self, codes: Sequence[Codes]) -> list[Wave]:
        """Return the wave of each utterance."""
        ...


CODECS: Mapping[str, str] = {
    "embedded": "hf_rlhf_speech.codecs.embedded:EmbeddedCodec",
    "dac": "hf_rlhf_speech.codecs.transformers:dac",
    "encodec": "hf_rlhf_speech.codecs.transformers:encodec",
    "mimi": "hf_rlhf_speech.codecs.transformers:mimi",
    "xcodec2": "hf_rlhf_speech.codecs.transformers:xcodec2",
}
"""Name -> class. A codec with weights of its own is written `name:FOLDER_OR_HUB_ID`."""
FILE = "file"
"""No codec: a completion is the path of a sound file."""


@lru_cache(maxsize=4)
def load_codec(name: str) -> Codec:
    """Return the codec `name` or `name:FOLDER_OR_HUB_ID`; raise ConfigError if there is none."""
    kind, _, source = name.partition(":")
    check_codec(name)
    module, _, attribute = CODECS[kind].partition(":")
    make: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    codec: Codec = make(source) if source else make()
    return codec


def check_codec(name: str) -> None:
    """Raise ConfigError if there is no codec of this name or in this folder; nothing is loaded."""
    kind, colon, source = name.partition(":")
    if kind not in (*CODECS, FILE):
        what = f"there is no codec {kind!r}{did_you_mean(kind, [*CODECS, FILE])}."
        raise ConfigError([Problem("codec", what, f"Codecs: {', '.join([*CODECS, FILE])}.")])
    if colon and kind in (FILE, "embedded"):
        what = f"is {name!r}, and {kind} takes no folder or Hub id."
        raise ConfigError([Problem("codec", what, f"Write `codec: {kind}`.")])
    try:
        if source:
            find_model(source)
    except ModelError as error:
        fix = f"Write `codec: {kind}:FOLDER`, or a Hub id in its place."
        raise ConfigError([Problem("codec", f"is {name!r}: {error}", fix)]) from error
