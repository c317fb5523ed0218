"""What hf_rlhf_speech ships: codebooks, reference codes, `tiny_speaker` and `feature_scorer`.

The same seed gives the same files, up to rounding, which depends on the processor.
"""

import io
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from training import IGNORED, padded, train, warm_up_and_decay

from hf_rlhf.storage import atomic_write_bytes
from hf_rlhf_speech.audio import Wave
from hf_rlhf_speech.codecs.codec import Codec, load_codec
from hf_rlhf_speech.codecs.embedded import CODEBOOKS, PROSODY_SCALE, nearest, quantised_vectors
from hf_rlhf_speech.codecs.vocoder import SILENCE_DB, analyse
from hf_rlhf_speech.world import speaker
from hf_rlhf_speech.world.espeak import VOICES, Utterance
from hf_rlhf_speech.world.flaws import draw_flaws, render
from hf_rlhf_speech.world.quality import REFERENCES
from hf_rlhf_speech.world.texts import STYLES, TEXTS, WORDS, draw_text
from hf_rlhf_worlds.sampling import Split, distinct
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import (
    add_plain_tokens,
    byte_level,
    chat_template,
    small_tokenizer,
    word_model,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

Vectors = NDArray[np.float32]
PAD, END = "<pad>", "<end>"
LENGTH = 512
"""Tokens of the longest row of the tiny speaker: 9 seconds."""


def make_codec(folder: Path, *, utterances: int = 1200, size: int = 1024, seed: int = 0) -> Path:
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
    text = TEXTS[index // 2 % len(TEXTS)] if index % 2 else draw_text(random.Random(seed))
    utterance = Utterance(
        text, [*VOICES][index % len(VOICES)], int(rng.integers(110, 200)), int(rng.integers(15, 99))
    )
    wave = render(utterance, draw_flaws(rng, clean=0.5), seed)
    return np.concatenate([np.zeros(int(rng.integers(640)), np.float32), wave])


def codebook(
    vectors: Vectors, weights: NDArray[np.float64], size: int, seed: int, rounds: int = 15
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


def make_references(folder: Path, *, rows: int = 480, held_out: int = 120, seed: int = 0) -> None:
    """Write the clean codes of lines of both splits, for `speech_prompts` and the gold measure."""
    rng, codec = random.Random(f"{seed}/references"), load_codec("embedded")

    def drawn(split: Split, count: int) -> Iterator[speaker.Line]:
        lines = distinct(lambda: speaker.draw_line(rng), lambda line: line.text, split)
        return islice(lines, count)

    lines = [*drawn("train", rows), *drawn("test", held_out)]
    codes = codec.encode([speaker.spoken(line) for line in lines])
    file = io.BytesIO()
    np.savez_compressed(
        file,
        prompts=np.array([line.prompt for line in lines]),
        frames=np.array([len(each) for each in codes]),
        codes=np.concatenate(codes).astype(np.int16),
    )
    atomic_write_bytes(folder / REFERENCES.name, file.getvalue())


def build_tokenizer(codec: Codec) -> "PreTrainedTokenizerFast":
    """Return one token per word of the lines and per code, and bytes for all other text."""
    spaced = " ".join((*WORDS, *speaker.VOICES)).split()
    words = [*STYLES, *(f" {word}" for word in dict.fromkeys(spaced))]
    backend = byte_level(word_model((PAD, END), words), r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s")
    form, codes = codec.form, codec.codebooks * codec.size
    add_plain_tokens(backend, [form.start, form.end or END, *form.tokens(codes)])
    template = chat_template("<", ">", END)
    return small_tokenizer(backend, pad=PAD, end=END, length=LENGTH, template=template)


def make_speaker(
    folder: Path,
    *,
    utterances: int = 20_000,
    steps: Sequence[int] = (2500,),
    hidden: int = 96,
    seed: int = 0,
) -> None:
    """Write `folder`/tiny_speaker, which has learned to speak, flaws included."""
    tokenizer = build_tokenizer(load_codec("embedded"))
    spoken = [*islice(speaker.demonstrations(seed), utterances)]
    rows = []
    with ProcessPoolExecutor() as pool:
        written = pool.map(_written, spoken, chunksize=50)
        for demonstration, speech in zip(spoken, written, strict=True):
            head = tokenizer(demonstration.line.prompt).input_ids
            tail = [*tokenizer(speech).input_ids, tokenizer.eos_token_id]
            rows.append((head + tail, [IGNORED] * len(head) + tail))
    model = small_llama(tokenizer, seed=seed, hidden=hidden, layers=4, positions=LENGTH, widening=3)
    losses = _losses(model, tokenizer.pad_token_id, rows, seed)
    train(model, "tiny_speaker", losses, *steps, 4e-3, warm_up_and_decay(*steps), every=50)
    save_model(model, tokenizer, folder / "tiny_speaker", do_sample=True)


def _written(demonstration: speaker.Demonstration) -> str:
    codec = load_codec("embedded")
    return codec.form.write(codec.encode([demonstration.wave()])[0], codec.size)


def _losses(model: Any, pad: int, rows: Sequence[Any], seed: int) -> "Iterator[Tensor]":
    rng = random.Random(seed)
    while True:
        # Neighbours in length share a batch.
        drawn = sorted(rng.sample(rows, 32 * 8), key=lambda row: len(row[0]))
        batches = [drawn[start : start + 32] for start in range(0, len(drawn), 32)]
        rng.shuffle(batches)
        for batch in batches:
            ids, labels = padded(batch, pad)
            yield model(input_ids=ids, labels=labels).loss


def make_feature_scorer(folder: Path, *, seed: int = 0) -> None:
    """Write `folder`/feature_scorer: what `audio_reward` starts from, without a trained weight.

    Its head is left out, so that each run draws its own from its seed.
    """
    from hf_rlhf_speech.audio_reward.feature_scorer import (
        AcousticFeatureExtractor,
        FeatureScorer,
        FeatureScorerConfig,
    )

    model = FeatureScorer(FeatureScorerConfig(num_labels=1))
    buffers = {f"projector.{name}": value for name, value in model.projector.named_buffers()}
    model.save_pretrained(folder / "feature_scorer", state_dict=buffers)
    AcousticFeatureExtractor().save_pretrained(folder / "feature_scorer")
