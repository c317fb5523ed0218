"""`tiny_base` of hf_rlhf_traces: it has read plain text about many worlds of `multihop`.

What it reads is in `reading`; it is trained in four stages. The tokenizer has a token for each
word, name and tag, and bytes for the rest. Names never have a space in their token: the space
before belongs to the word or sign there, so that a name is the same token wherever it stands, and
can be copied.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reading import PHRASES, STAGES, TAGS, passages
from training import IGNORED, padded, train, warm_up, warm_up_and_decay

from hf_rlhf_worlds.multihop import PARTS, RELATIONS
from hf_rlhf_worlds.tiny_models import save_model, small_llama
from hf_rlhf_worlds.tokenizers import (
    END,
    PAD,
    ROLES,
    add_plain_tokens,
    byte_level,
    chat_template,
    small_tokenizer,
    word_model,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

STEPS = (800, 800, 5000, 500)
RATES = (3e-3, 3e-3, 3e-3, 1e-3)
"""Of each stage of `reading.STAGES`."""
_POOL = 8
"""Batches that are sorted by length at a time, so that little of them is padding."""
LENGTH = 32768
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


def _words() -> Iterator[str]:
    """Yield the parts of names, names, and what else is one token each."""
    for parts in PARTS.values():
        yield from (piece for group in parts for piece in group.split())
    for stems, endings in PARTS.values():
        yield from (stem + ending for stem in stems.split() for ending in endings.split())
    for tag in TAGS:
        yield from (f"<{close}{tag}>{end}" for close in ("", "/") for end in ("", "\n"))
    yield from (f"Doc {number} (Title: " for number in range(1, 6))
    yield from (")\n", "<quote", ' title="', '">')
    yield from ("The ", "I ", "Who ", "Which ", "So ", "the ", "of ", "is ", " is ", "need ")
    yield from ("town ", *(f"{name} " for kind in RELATIONS.values() for name in kind))
    yield from (". ", "? ")


def build_tokenizer() -> "PreTrainedTokenizerFast":
    """Return byte-level BPE with a merge path for each word, so that nothing depends on training.

    The fixed sentences of the prompts are a token each, so that prompts are short.
    """
    backend = byte_level(word_model((PAD, END), _words()), _PIECES)
    add_plain_tokens(backend, (*ROLES, *PHRASES))
    template = chat_template("<|", "|>", END)
    return small_tokenizer(backend, pad=PAD, end=END, length=LENGTH, template=template)


class Builder:
    """The model, its tokenizer, and the tokens that it has read."""

    def __init__(self, seed: int, hidden: int, layers: int) -> None:
        self.tokenizer = build_tokenizer()
        self.model = small_llama(
            self.tokenizer,
            seed=seed,
            hidden=hidden,
            layers=layers,
            positions=LENGTH,
            initializer_range=0.06,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        )
        self.seed = seed
        self.tokens_read: set[int] = set()

    def losses(self, stage: int, size: int) -> Iterator["Tensor"]:
        """Yield losses of batches of fresh passages of about the same length."""
        texts, rng = passages(self.seed, stage), random.Random(f"batches/{self.seed}/{stage}")
        pad = self.tokenizer.pad_token_id
        while True:
            rows = [self._encoded(*next(texts)) for _ in range(_POOL * size)]
            rows.sort(key=lambda row: len(row[0]))
            batches = [rows[start : start + size] for start in range(0, len(rows), size)]
            rng.shuffle(batches)
            yield from (self._loss(*padded(batch, pad)) for batch in batches)

    def _encoded(self, context: str, continued: str) -> tuple[list[int], list[int]]:
        head, ids = (self.tokenizer(text).input_ids for text in (context, context + continued))
        self.tokens_read.update(ids)
        return ids, [IGNORED] * len(head) + ids[len(head) :]

    def _loss(self, ids: "Tensor", labels: "Tensor") -> "Tensor":
        """Return the mean loss; logits are computed only where there is a label."""
        from torch.nn.functional import cross_entropy

        hidden = self.model.model(input_ids=ids).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        counted = targets != IGNORED
        return cross_entropy(self.model.lm_head(hidden[counted]), targets[counted])

    def redraw_unread(self) -> None:
        """Draw the embeddings of tokens that were never read anew, as wide as those of the others.

        Pushed away from what was right they have all drifted to one point (cosine 0.9998), where
        fine-tuning can hardly separate them.
        """
        import torch

        weight = self.model.get_input_embeddings().weight.data
        unread = [token for token in range(len(weight)) if token not in self.tokens_read]
        width = weight[sorted(self.tokens_read)].std()
        rng = torch.Generator().manual_seed(self.seed)
        weight[unread] = width * torch.randn(len(unread), weight.shape[1], generator=rng)


def build(
    out: Path,
    seed: int = 0,
    *,
    hidden: int = 64,
    layers: int = 4,
    steps: Sequence[int] = STEPS,
    batch: int = 32,
) -> None:
    """Write the model and its tokenizer to `out`."""
    builder = Builder(seed, hidden, layers)
    for stage, (count, rate) in enumerate(zip(steps, RATES, strict=True)):
        if stage == len(STAGES) - 1:
            builder.redraw_unread()
        schedule: Any = warm_up_and_decay(count) if stage > 1 else warm_up
        losses = builder.losses(stage, batch)
        train(builder.model, f"stage {stage}", losses, count, rate, schedule)
        save_model(builder.model, builder.tokenizer, out)
