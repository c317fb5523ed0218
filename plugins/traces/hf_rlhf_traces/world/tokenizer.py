"""The tokenizer of the tiny model: a token for each word, name and tag, and bytes for the rest.

Names never have a space in their token: the one before belongs to the word or sign there, so that
a name is the same token wherever it stands, and can be copied.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hf_rlhf.testing.small_tokenizers import byte_level, chat_template, small_tokenizer
from hf_rlhf_traces.format import TAGS, Format
from hf_rlhf_traces.world.facts import PARTS, RELATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
LENGTH = 32768

CHAT_TEMPLATE = chat_template("<|", "|>", END)

_PIECES = "|".join(
    (
        r"</?[a-z]+>\n?|<[a-z]+(?= )| title=\"|\">",  # tags, and quotes with a title
        r"Doc [0-9]+ \(Title: |\)\n",  # what stands before and after the title of a document
        r"(?:The|I|Who|Which|So) ",
        r"\p{Lu}\p{L}*",  # a name, or any word with a capital
        r" ?\p{L}+ ?",
        r"\p{N}",
        r"[^\s\p{L}\p{N}<]+\s?",
        r"<+",
        r"\s+",
    )
)


def _words() -> list[str]:
    """Return what is one token each, besides names."""
    form = Format()
    tags = [f"<{'/' * closing}{form.names[tag]}>{end}" for tag in TAGS
            for closing in (False, True) for end in ("", "\n")]  # fmt: skip
    documents = [f"Doc {number} (Title: " for number in range(1, 6)]
    relations = [f"{one} " for kind in RELATIONS.values() for one in kind]
    small = ["The ", "I ", "Who ", "Which ", "So ", "the ", "of ", "is ", " is ", "need ", "town "]
    return [*tags, *documents, ")\n", "<quote", ' title="', '">', *small, *relations, ". ", "? "]


def phrases() -> list[str]:
    """Return the fixed sentences of the templates: a token each, so that prompts are short."""
    form = Format()
    asked = (form.multiturn, form.summary_prefix, form.summary_only)
    return [form.ask(template, "").strip() for template in asked]


class Merges:
    """The merges of a byte-pair encoding, added for one word after another."""

    def __init__(self) -> None:
        from tokenizers import pre_tokenizers

        self.vocabulary = {PAD: 0, END: 1}
        for byte in sorted(pre_tokenizers.ByteLevel.alphabet()):
            self.vocabulary[byte] = len(self.vocabulary)
        self.pairs: dict[tuple[str, str], int] = {}

    def add(self, word: str) -> None:
        """Make one token of a word. Merges of earlier words come first, and stay as they are."""
        whole, *rest = self._pieces(word.replace(" ", "\u0120").replace("\n", "\u010a"))
        for piece in rest:
            self.pairs.setdefault((whole, piece), len(self.pairs))
            whole += piece
            self.vocabulary.setdefault(whole, len(self.vocabulary))

    def _pieces(self, word: str) -> list[str]:
        """Return a word as the merges so far leave it."""
        pieces = list(word)
        while True:
            ranks = [self.pairs.get(pair) for pair in zip(pieces, pieces[1:], strict=False)]
            known = [rank for rank in ranks if rank is not None]
            if not known:
                return pieces
            at = ranks.index(min(known))
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Build byte-level BPE with a merge path for each word, so that nothing depends on training."""
    from tokenizers import AddedToken, models

    merges = _merges()
    backend = byte_level(models.BPE(vocab=merges.vocabulary, merges=list(merges.pairs)), _PIECES)
    ordinary = [*ROLES, *phrases()]
    backend.add_tokens([AddedToken(one, special=False, normalized=False) for one in ordinary])
    return small_tokenizer(backend, pad=PAD, end=END, length=LENGTH, template=CHAT_TEMPLATE)


def _merges() -> Merges:
    merges = Merges()
    _add(merges, (part for parts in PARTS.values() for group in parts for part in group.split()))
    for stems, endings in PARTS.values():
        _add(merges, (stem + ending for stem in stems.split() for ending in endings.split()))
    _add(merges, _words())
    return merges


def _add(merges: Merges, words: Iterable[str]) -> None:
    for word in words:
        merges.add(word)
