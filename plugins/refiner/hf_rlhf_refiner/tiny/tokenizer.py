"""The tiny policy's tokenizer: one token for each word of the world, bytes for all the rest."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from hf_rlhf.testing.small_tokenizers import byte_level, chat_template, small_tokenizer
from hf_rlhf_refiner.tiny.world import ENTITIES, IDS, VALUES, Fact, stream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TAGS = ("<answer>", "</answer>", "<snippet id=", "</snippet>")
"""Ordinary tokens, so that decoding keeps them."""
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

CHAT_TEMPLATE = chat_template("<|", "|>", END)

# Words with their leading space, and letters with digits ("S3" is one piece).
_PIECES = r" ?[\p{L}\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def build_tokenizer(seed: int, size: int = 1536, length: int = 4096) -> "PreTrainedTokenizerFast":
    """Train byte-level BPE of `size` tokens: any text is representable, the world is short.

    It is trained on problems of the world and, so that other English is not spelt byte by byte,
    on the language reference that comes with Python. The merges depend on that text and thus a
    little on Python's version; the shipped tokenizer was made by 3.11.
    """
    from tokenizers import AddedToken, models, pre_tokenizers, trainers

    backend = byte_level(models.BPE(), _PIECES)
    special = [PAD, END, *ROLES]
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(TAGS),
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(seed), trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    return small_tokenizer(
        backend,
        pad=PAD,
        end=END,
        length=length,
        template=CHAT_TEMPLATE,
        extra_special_tokens=list(ROLES),
    )


def world_words() -> list[str]:
    """Every piece that a problem is made of and that should be one token, as it is spelt there."""
    spaced = [*ENTITIES, *VALUES, *(value for values in VALUES.values() for value in values)]
    return [*(f" {word}" for word in spaced), *IDS, "The", " of", " is", ".", ">"]


def _corpus(seed: int) -> Iterator[str]:
    from pydoc_data.topics import topics

    rng = random.Random(seed)
    for problem in islice(stream(rng, "train"), 2000):
        yield problem.prompt
    # Often enough for every word of the world to be merged before rare English is.
    for attribute, values in VALUES.items():
        for value in values:
            sentences = (Fact(entity, attribute, value).sentence for entity in ENTITIES)
            yield from (sentence for sentence in sentences for _ in range(5))
    yield from (topics[name] for name in sorted(topics))
