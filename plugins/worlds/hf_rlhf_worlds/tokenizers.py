"""Small tokenizers: byte-level BPE with a list of single-token words, for any text.

The word list or the training text determines everything, so equal input gives equal files.
"""

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.models import Model
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


def byte_level(model: "Model", pieces: str = "") -> "Tokenizer":
    """Return a tokenizer that splits text by a regular expression and spells the pieces in bytes.

    Args:
        model: encodes a piece, for example `tokenizers.models.BPE`.
        pieces: the regular expression; each match, and each text between matches, is a piece.
            Empty: GPT-2's.
    """
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers

    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pieces:
        split = pre_tokenizers.Split(Regex(pieces), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    backend.decoder = decoders.ByteLevel()
    return backend


def word_model(special: Iterable[str], words: Iterable[str]) -> "Model":
    """Return a BPE model with a single token per special token, per byte, and per word.

    Merges of earlier words come first and do not change.
    """
    from tokenizers import models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*special, *alphabet))}
    merges: dict[tuple[str, str], int] = {}
    for word in words:
        merged, *rest = _merged(word.replace(" ", "\u0120").replace("\n", "\u010a"), merges)
        for piece in rest:
            merges.setdefault((merged, piece), len(merges))
            merged += piece
            vocabulary.setdefault(merged, len(vocabulary))
    return models.BPE(vocab=vocabulary, merges=list(merges))


def _merged(word: str, merges: dict[tuple[str, str], int]) -> list[str]:
    """Return a word after the merges so far."""
    pieces = list(word)
    while ranked := [
        (merges[pair], at) for at, pair in enumerate(itertools.pairwise(pieces)) if pair in merges
    ]:
        _, at = min(ranked)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces


def trained_on(
    texts: Iterable[str], *, pieces: str, special: Iterable[str], size: int
) -> "Tokenizer":
    """Return a tokenizer of `size` tokens with merges learned from `texts`."""
    from tokenizers import models, pre_tokenizers, trainers

    backend = byte_level(models.BPE(), pieces)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def add_plain_tokens(backend: "Tokenizer", texts: Iterable[str]) -> None:
    """Add tokens that decoding never drops, so that rewards see them in a completion."""
    from tokenizers import AddedToken

    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in texts])


def chat_template(before: str, after: str, end: str) -> str:
    """Return a template with turns of the role between two marks, the text, and `end`.

    The markers around the assistant's text are for TRL's `assistant_only_loss`.
    """
    return (
        "{%- for message in messages -%}"
        f"{{{{- '{before}' + message['role'] + '{after}' -}}}}"
        "{%- if message['role'] == 'assistant' -%}"
        f"{{%- generation -%}}{{{{- message['content'] + '{end}' -}}}}{{%- endgeneration -%}}"
        f"{{%- else -%}}{{{{- message['content'] + '{end}' -}}}}{{%- endif -%}}"
        "{%- endfor -%}"
        f"{{%- if add_generation_prompt -%}}{{{{- '{before}assistant{after}' -}}}}{{%- endif -%}}"
    )


def small_tokenizer(
    backend: "Tokenizer", *, pad: str, end: str, length: int, template: str, **settings: Any
) -> "PreTrainedTokenizerFast":
    """Return a tokenizer for a small model, which pads on the left.

    Args:
        backend: of `byte_level` or `trained_on`.
        pad: the padding token.
        end: the end-of-sequence token.
        length: the longest row, in tokens.
        template: the chat template.
        settings: further settings of `PreTrainedTokenizerFast`.
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        eos_token=end,
        model_max_length=length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **settings,
    )
    tokenizer.chat_template = template
    return tokenizer
