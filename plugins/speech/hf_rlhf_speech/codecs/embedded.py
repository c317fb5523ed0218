"""The default codec `embedded`, 50 tokens a second, for espeak's voices and demos.

A vocoder with parameters quantised per pair of frames: 40 ms have a token for the envelope and a
token for pitch, loudness and voicing. It needs only numpy and scipy.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hf_rlhf_speech.audio import RATE, Wave
from hf_rlhf_speech.codecs.codec import Codes, TextForm
from hf_rlhf_speech.codecs.vocoder import (
    BANDS,
    HOP,
    SILENCE_DB,
    Frames,
    analyse,
    carry_pitch,
    synthesize,
)

CODEBOOKS = Path(__file__).parent / "embedded.npz"
PAIR = 2
PROSODY_SCALE = np.array([12.0, 24.0, 0.25, 0.25, 3.0, 3.0, 1.5, 1.5])
"""Scale of pitch (octaves), its change, loudness (dB) of both frames, voicing below and above 2
kHz: differences of 1 sound alike."""
_SILENT_PITCH = np.log2(120.0)


class EmbeddedCodec:
    """The default codec, for espeak's voices and demos: quantised parameters of a vocoder."""

    name = "embedded"
    rate = RATE
    codebooks = 2
    form = TextForm()

    def __init__(self) -> None:
        self._envelopes, self._prosody = _load()
        self.size = len(self._envelopes)
        self.frame_rate = RATE / HOP / PAIR

    def encode(self, waves: Sequence[Wave]) -> list[Codes]:
        """Return the codes [frames, 2] of each wave at 16 kHz."""
        return [self._encode(wave) for wave in waves]

    def _encode(self, wave: Wave) -> Codes:
        envelopes, prosody = quantised_vectors(analyse(wave))
        pairs = [nearest(envelopes, self._envelopes), nearest(prosody, self._prosody)]
        return np.stack(pairs, axis=1)

    def decode(self, codes: Sequence[Codes]) -> list[Wave]:
        """Return the wave of each utterance; deterministic."""
        return [self._decode(each) for each in codes]

    def _decode(self, codes: Codes) -> Wave:
        return synthesize(self.frames(codes)) if len(codes) else np.zeros(0, np.float32)

    def frames(self, codes: Codes) -> Frames:
        """Return the vocoder parameters of the codes."""
        envelope = self._envelopes[codes[:, 0]].reshape(-1, BANDS)
        prosody = self._prosody[codes[:, 1]] / PROSODY_SCALE
        voicing = np.clip(prosody[:, 4:].reshape(-1, 2, 2).swapaxes(1, 2).reshape(-1, 2), 0, 1)
        change = np.outer(prosody[:, 1], [-0.5, 0.5])
        pitch = carry_pitch((prosody[:, :1] + change).ravel(), voicing[:, 0] > 0)
        loudness = np.maximum(prosody[:, 2:4].ravel(), SILENCE_DB)
        return Frames(envelope.astype(float), loudness, pitch, voicing)


@cache
def _load() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    with np.load(CODEBOOKS, allow_pickle=False) as stored:
        return stored["envelopes"].astype(np.float32), stored["prosody"].astype(np.float32)


def quantised_vectors(frames: Frames) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the quantised values per pair of frames: [pairs, 2 * BANDS] and [pairs, 8]."""
    odd = len(frames.loudness) % PAIR

    def paired(values: NDArray[np.float64]) -> NDArray[np.float64]:
        padded = np.concatenate([values, values[-1:]]) if odd else values
        return padded.reshape(len(padded) // PAIR, PAIR, -1)

    loudness = paired(frames.loudness)[..., 0]
    pitch = paired(frames.pitch)[..., 0]
    voicing = paired(frames.voicing)
    voiced = voicing[..., 0].any(1)
    # Inaudible parameters have a single value, and so a single token.
    mean = np.where(voiced, pitch.mean(1), _SILENT_PITCH)
    change = np.where(voiced, pitch[:, 1] - pitch[:, 0], 0.0)
    prosody = np.concatenate(
        [np.stack([mean, change], 1), loudness, voicing[..., 0], voicing[..., 1]], 1
    )
    envelopes = paired(frames.envelope).reshape(len(loudness), -1)
    return envelopes.astype(np.float32), (prosody * PROSODY_SCALE).astype(np.float32)


def nearest(vectors: NDArray[np.float32], book: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the index of the nearest entry for each vector."""
    distance = (book**2).sum(1)[None] - 2 * vectors @ book.T
    return np.asarray(distance.argmin(1), np.int64)
