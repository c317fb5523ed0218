"""Packs the rows of a call into a single row with each prompt once, before its completions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

LAYOUT = "prompt_layout"
"""The keyword argument by which a model passes the layout to its attention."""
IGNORED = -100
SPREAD = 1.25
"""Prompts of a block are at most this many times as long as its shortest one, plus 8 tokens."""
_Part = tuple[Tensor, list[Tensor]]
"""Positions in the packed row of a prompt and of each of its completions."""


@dataclass(frozen=True)
class Block:
    """Prompts of similar length, each with the same number of completions.

    All are given by their positions in the packed row. The last token of a prompt begins each of
    its completions, since it predicts their first token. Rows of positions are padded to the
    longest with their last position.
    """

    prompts: Tensor
    """Shape (prompts, longest), each without its last token."""
    prompts_real: Tensor
    """Shape (prompts, longest): False for padding."""
    index: Tensor
    """Shape (completions, longest), in the order of the prompts."""
    real: Tensor
    """Shape (completions, longest): False for padding."""
    whole: bool
    """Whether there is no padding."""
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Attention masks of prompts and completions, by the size of the sliding window."""

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return the attention masks of prompts and of completions."""
        if window not in self.masks:
            count, before = self.prompts.shape
            columns = torch.arange(before + self.index.shape[1], device=self.index.device)
            lengths = self.prompts_real.sum(1)[:, None]
            if count > 1:
                lengths = lengths.repeat_interleave(len(self.index) // count, 0)
            # A completion starts where its own prompt ends, not where the longest prompt ends.
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
    """Shape (1, packed): the position ids, as for a row alone."""
    targets: Tensor
    """Shape (1, packed): the token that each token predicts, -100 where it is not scored."""
    blocks: Sequence[Block]
    places: Tensor
    """Shape (rows, tokens): positions in the packed row; 0 for padding and the end of a row."""
    scored: Tensor
    """Shape (rows, tokens - 1): whether TRL's value there belongs to a completion."""

    @classmethod
    def of(cls, ids: Tensor, mask: Tensor, labels: Tensor) -> "Layout | None":
        """Return the layout of a call by TRL; None if no two completions share a prompt.

        Args:
            ids, mask, labels: shape (rows, tokens), padded on either side. A prompt is the tokens
                before the first label; a row without labels has no value and is left out.
        """
        groups: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
        known = (labels != IGNORED).cpu()
        for row, (own, scored) in enumerate(zip(mask.bool().cpu(), known, strict=True)):
            columns = own.nonzero()[:, 0]
            # No token predicts the first token of a row.
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
        """Return the packed row as the arguments of a model."""
        return {
            "input_ids": self.tokens,
            "position_ids": self.positions,
            # transformers leaves a mask of four dimensions as it is; the attention has its own.
            "attention_mask": torch.ones(1, 1, 1, 1, device=self.tokens.device),
            LAYOUT: self,
        }

    def back(self, packed: Tensor) -> Tensor:
        """Return values of the packed row, shape (1, packed), in TRL's shape; 0 elsewhere."""
        places, scored = self.places.to(packed.device), self.scored.to(packed.device)
        return packed[0, places[:, :-1]].where(scored, 0)


def packed_row(prompts: int, rows: int, prompt: int, tokens: int) -> dict[str, Any] | None:
    """Return the arguments of a model for `rows` of equal length; None if no prompt is shared."""
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
    """Yield groups of prompts with equally many completions and similar lengths."""
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
    """Return rows of positions, each padded with its last one, and which are not padding."""
    sizes = torch.tensor([len(each) for each in places], device=places[0].device)[:, None]
    columns = torch.arange(int(sizes.max()), device=sizes.device)
    padded = pad_sequence(list(places), batch_first=True)
    return padded.gather(1, columns.minimum((sizes - 1).clamp(min=0))), columns < sizes


def _sees(own: Tensor, other: Tensor, window: int | None) -> Tensor:
    causal = other <= own
    return causal if window is None else causal & (other > own - window)


def after_common(ids: Tensor, mask: Tensor) -> Tensor:
    """Return labels, shape (rows, tokens): the tokens after the common start of each pair of rows.

    Row r and row r + rows / 2 are a pair. Equal rows count as different in their last token.
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
