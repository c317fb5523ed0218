"""How what ships was made: `python -m hf_rlhf_speech.recipes codec --out FOLDER`."""

import argparse
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.codecs.embedded import CODEBOOKS, PROSODY_SCALE, nearest, quantised_vectors
from hf_rlhf_speech.codecs.vocoder import SILENCE_DB, analyse
from hf_rlhf_speech.world.espeak import VOICES, Utterance
from hf_rlhf_speech.world.flaws import draw_flaws, render
from hf_rlhf_speech.world.texts import TEXTS, draw_text

Vectors = NDArray[np.float32]


def make_codec(folder: Path, *, utterances: int = 1500, size: int = 1024, seed: int = 0) -> Path:
    """Write the codebooks of the embedded codec, learned from espeak's voices; return the file."""
    vectors = [
        quantised_vectors(analyse(_drawn_wave(index, seed + index))) for index in range(utterances)
    ]
    envelopes, prosody = (np.concatenate(each) for each in zip(*vectors, strict=True))
    loudness = (prosody / PROSODY_SCALE)[:, 2:4].max(1)
    weights = np.clip((loudness - SILENCE_DB) / 40, 0.02, 1)
    file = io.BytesIO()
    np.savez(
        file,
        envelopes=codebook(envelopes, weights, size, seed).astype(np.float16),
        prosody=codebook(prosody, np.maximum(weights, 0.1), size, seed).astype(np.float16),
    )
    atomic_write_bytes(folder / CODEBOOKS.name, file.getvalue())
    return folder / CODEBOOKS.name


def _drawn_wave(index: int, seed: int) -> Wave:
    rng = np.random.default_rng(seed)
    text = TEXTS[index // 2 % len(TEXTS)] if index % 2 else draw_text(rng)
    utterance = Utterance(
        text, [*VOICES][index % len(VOICES)], int(rng.integers(110, 200)), int(rng.integers(15, 99))
    )
    wave = render(utterance, draw_flaws(rng, clean=0.5), seed)
    return np.concatenate([np.zeros(int(rng.integers(640)), np.float32), wave])


def codebook(
    vectors: Vectors, weights: NDArray[np.float64], size: int, seed: int, rounds: int = 25
) -> Vectors:
    """Return the centres of weighted k-means; a centre without vectors becomes one of them."""
    rng = np.random.default_rng(seed)
    share = weights / weights.sum()
    book = vectors[rng.choice(len(vectors), size, replace=False, p=share)]
    for _ in range(rounds):
        entry = nearest(vectors, book)
        weight = np.bincount(entry, weights, size)
        sums = np.stack([np.bincount(entry, weights * column, size) for column in vectors.T], 1)
        drawn = vectors[rng.choice(len(vectors), size, p=share)]
        mean = sums / np.maximum(weight, 1e-9)[:, None]
        book = np.where(weight[:, None] > 0, mean, drawn).astype(np.float32)
    return book


def main() -> None:
    """Make what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m hf_rlhf_speech.recipes", description=__doc__)
    parser.add_argument("what", choices=("codec",))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    print(make_codec(arguments.out, seed=arguments.seed))


if __name__ == "__main__":
    main()
