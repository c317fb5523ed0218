"""The tokenizer of both worlds: one token per digit, sign and word, and bytes for all the rest."""

from typing import TYPE_CHECKING

from hf_rlhf.testing.small_tokenizers import byte_level, chat_template, small_tokenizer
from hf_rlhf_classic.worlds.tastes import ADJECTIVES, NOUNS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>", "<tool>")
"""Ordinary tokens: one that a policy writes in a completion stays visible to the rewards."""
WORDS = ("likes", *(f" {word}" for word in (*ADJECTIVES, *NOUNS, "hates", "and")))

# For conversations of other data sets; the worlds' own prompts are plain strings.
CHAT_TEMPLATE = chat_template("<", ">", END)

# A word with its leading space; each digit, and each other character, on its own.
_PIECES = r" ?\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s"


def build_tokenizer(length: int = 512) -> "PreTrainedTokenizerFast":
    """Build byte-level BPE with one merge path per word, so that nothing depends on training."""
    from tokenizers import AddedToken, models, pre_tokenizers

    vocabulary = {PAD: 0, END: 1}
    for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[byte] = len(vocabulary)
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        _add(word.replace(" ", "\u0120"), vocabulary, merges)
    backend = byte_level(models.BPE(vocab=vocabulary, merges=merges), _PIECES)
    backend.add_tokens([AddedToken(role, special=False, normalized=False) for role in ROLES])
    return small_tokenizer(backend, pad=PAD, end=END, length=length, template=CHAT_TEMPLATE)


def _add(word: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Add the merges that make one token of a word, letter by letter from the left."""
    for end in range(2, len(word) + 1):
        pair = (word[: end - 1], word[end - 1])
        if pair not in merges:
            merges.append(pair)
        vocabulary.setdefault(word[:end], len(vocabulary))
