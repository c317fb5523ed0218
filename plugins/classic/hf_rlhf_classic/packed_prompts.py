"""Rows of a call packed into one, in which each prompt stands once, before its completions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

LAYOUT = "prompt_layout"
"""The name under which a model hands the layout on to its attention."""
IGNORED = -100
SPREAD = 1.25
"""How many times the shortest of them the longest prompt of a block may be, plus 8 tokens."""
_Part = tuple[Tensor, list[Tensor]]
"""Places of a prompt in the packed row, and of each of its completions."""


@dataclass(frozen=True)
class Block:
    """Prompts of like lengths, each with as many completions, by places in the packed row.

    The last token of a prompt begins each completion, since it predicts the first token of it.
    Rows of places are filled up to the longest with their last one.
    """

    prompts: Tensor
    """Shape (prompts, longest), each without its last token."""
    prompts_real: Tensor
    """Shape (prompts, longest): False for what only fills up."""
    index: Tensor
    """Shape (completions, longest), those of the first prompt first."""
    real: Tensor
    """Shape (completions, longest)."""
    whole: bool
    """Whether nothing fills up."""
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Of prompts and completions, by the size of the sliding window."""

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return which tokens each token of a prompt and of a completion sees."""
        if window not in self.masks:
            count, before = self.prompts.shape
            columns = torch.arange(before + self.index.shape[1], device=self.index.device)
            lengths = self.prompts_real.sum(1)[:, None]
            if count > 1:
                lengths = lengths.repeat_interleave(len(self.index) // count, 0)
            # A completion goes on where its own prompt ends, not where the longest one does.
            places = columns.where(columns < before, columns - before + lengths)
            fills = (columns < before) & (columns >= lengths)
            own = places[:, before:, None]
            outer = _sees(own, places[:, None], window) & ~fills[:, None]
            inner = _sees(columns[:before, None], columns[:before], window)
            self.masks[window] = inner, outer[:, None]
        return self.masks[window]


@dataclass(frozen=True)
class Layout:
    """Rows of a batch, packed into one with each prompt once."""

    tokens: Tensor
    """Shape (1, packed)."""
    positions: Tensor
    """Shape (1, packed): as in the row alone."""
    targets: Tensor
    """Shape (1, packed): the token that each one predicts, -100 where none is scored."""
    blocks: Sequence[Block]
    places: Tensor
    """Shape (rows, tokens): of each token in the packed row; 0 for padding and what ends a row."""
    scored: Tensor
    """Shape (rows, tokens - 1): whether TRL's value there is one of a completion."""

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> "Layout | None":
        """Return the layout of a call of TRL's; None where no two completions share a prompt.

        Args:
            ids, mask, labels: shape (rows, tokens), padded on either side. A prompt is what stands
                before the first label; a row without labels has no value and is left out.
        """
        groups: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
        known = (labels != IGNORED).cpu()
        for row, (own, scored) in enumerate(zip(mask.bool().cpu(), known, strict=True)):
            columns = own.nonzero()[:, 0]
            # The first token of a row is predicted by nothing.
            begins = scored[columns].nonzero()[:, 0].clamp(min=1)
            if not len(begins):
                continue
            first = int(begins[0])
            prompt = tuple(ids[row, columns[:first].to(ids.device)].tolist())
            groups.setdefault(prompt, []).append((row, columns))
        if not any(len(members) > 1 for members in groups.values()):
            return None
        return _pack(groups, ids, labels)

    def arguments(self) -> dict[str, Any]:
        """Return the packed row as a model takes it."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            # transformers leaves a mask of four dimensions as it is; the attention has its own.
            "attention_mask": torch.ones(1, 1, 1, 1, device=self.tokens.device),
            LAYOUT: self,
        }

    def back(self, packed: Tensor) -> Tensor:
        """Return values of the packed row, shape (1, packed), in TRL's form; 0 for the rest."""
        places, scored = self.places.to(packed.device), self.scored.to(packed.device)
        return packed[0, places[:, :-1]].where(scored, 0)


def packed_row(prompts: int, rows: int, prompt: int, tokens: int) -> dict[str, Any] | None:
    """Return what a model takes for `rows` of one length with so many prompts; None: rows alone."""
    ids = (torch.arange(rows) % prompts)[:, None].repeat(1, tokens)
    labels = ids.clone()
    labels[:, :prompt] = IGNORED
    layout = Layout.of(ids, torch.ones_like(ids), labels)
    return None if layout is None else layout.arguments()


def _pack(
    groups: Mapping[tuple[int, ...], Sequence[tuple[int, Tensor]]], ids: Tensor, labels: Tensor
) -> Layout:
    tokens, positions, targets, parts = [], [], [], []
    end, device, placed = 0, ids.device, torch.zeros_like(ids)
    scored = torch.zeros_like(ids, dtype=torch.bool)
    for prompt, members in groups.items():
        length = len(prompt) - 1
        begin = torch.arange(end, end + length, device=device)
        tokens.append(torch.tensor(prompt[:-1], dtype=ids.dtype, device=device))
        positions.append(torch.arange(length, device=device))
        targets.append(labels.new_full((length,), IGNORED))
        end += length
        completions = []
        for row, columns in members:
            before, own = columns.to(device).tensor_split([length])
            count = len(own) - 1
            tokens.append(ids[row, own[:-1]])
            targets.append(labels[row, own[1:]])
            positions.append(torch.arange(length, length + count, device=device))
            completions.append(torch.arange(end, end + count, device=device))
            placed[row, before] = begin
            placed[row, own[:-1]], scored[row, own[1:]] = completions[-1], True
            end += count
        parts.append((begin, completions))
    return Layout(
        tokens=torch.cat(tokens)[None],
        positions=torch.cat(positions)[None],
        targets=torch.cat(targets)[None],
        blocks=[_block(alike) for alike in _alike(parts)],
        places=placed,
        scored=scored[:, 1:],
    )


def _alike(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Yield prompts with as many completions and like lengths, so that little is filled up."""
    alike: list[_Part] = []
    for part in sorted(parts, key=_sizes):
        count, length, longest = _sizes(part)
        if alike:
            others, shortest, least = _sizes(alike[0])
            near = length <= SPREAD * shortest + 8 and longest <= SPREAD * least + 8
            if count != others or not near:
                yield alike
                alike = []
        alike.append(part)
    yield alike


def _sizes(part: _Part) -> tuple[int, int, int]:
    prompt, completions = part
    return len(completions), len(prompt), max(map(len, completions))


def _block(parts: Sequence[_Part]) -> Block:
    prompts, prompts_real = _filled([prompt for prompt, _ in parts])
    index, real = _filled([each for _, completions in parts for each in completions])
    sizes = {(len(prompt), len(each)) for prompt, completions in parts for each in completions}
    return Block(prompts, prompts_real, index, real, len(sizes) == 1)


def _filled(places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of places, each filled up with its last one, and which of them are real."""
    sizes = torch.tensor([len(each) for each in places], device=places[0].device)[:, None]
    columns = torch.arange(int(sizes.max()), device=sizes.device)
    padded = pad_sequence(list(places), batch_first=True)
    return padded.gather(1, columns.minimum((sizes - 1).clamp(min=0))), columns < sizes


def _sees(own: Tensor, other: Tensor, window: int | None) -> Tensor:
    causal = other <= own
    return causal if window is None else causal & (other > own - window)


def after_common(ids: Tensor, mask: Tensor) -> Tensor:
    """Return labels, shape (rows, tokens): of each pair of rows what follows their common tokens.

    Row r and row r + rows / 2 are a pair. Rows that are equal differ by their last token.
    """
    if len(ids) % 2:
        return ids.masked_fill(mask == 0, IGNORED)
    own = mask.bool()
    (first, second), (seen, seen_second) = ids.chunk(2), own.chunk(2)
    columns = torch.arange(ids.shape[1], device=ids.device)
    last = (columns * own).amax(1)
    differ = (first != second) | (seen != seen_second)
    begin = columns.expand_as(differ).where(differ, ids.shape[1]).amin(1).repeat(2)
    begin = torch.minimum(begin, torch.minimum(last, last.roll(len(first))))
    return ids.masked_fill(~own | (columns < begin[:, None]), IGNORED)
