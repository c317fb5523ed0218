"""Packs the rows of a call into a single row with each prompt once, before its completions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

LAYOUT = "prompt_layout"
"""The keyword argument by which a model passes the layout to its attention."""
IGNORED = -100
SPREAD = 1.25
"""Prompts of a block are at most this many times as long as its shortest one, plus 8 tokens."""


@dataclass(frozen=True)
class Block:
    """Prompts of similar length, each with the same number of completions.

    The last token of a prompt begins each of its completions, since it predicts their first token.
    """

    prompts: Tensor
    """Shape (prompts, longest): whether there is a token, not padding."""
    completions: Tensor
    """Shape (completions, longest): the same, in the order of the prompts."""
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Attention masks of prompts and completions, by the size of the sliding window."""

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return the attention masks of prompts and of completions."""
        if window not in self.masks:
            count, before = self.prompts.shape
            rows, longest = self.completions.shape
            columns = torch.arange(before + longest, device=self.prompts.device)
            sizes = self.prompts.sum(1, keepdim=True)
            lengths = sizes.repeat_interleave(rows // count, 0, output_size=rows)
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
    padded: Tensor
    """Positions in the packed row of the blocks' tokens, with padding, block by block."""
    order: Tensor
    """Shape (packed,): the index in `padded` of each token."""
    keys: Tensor
    """Positions of the tokens that each prompt and each completion sees, one after the other."""
    ends: tuple[Tensor, int, Tensor, int]
    """Where each prompt and completion ends in the row, and the longest; the same in `keys`."""
    places: Tensor
    """Shape (rows, tokens): positions in the packed row; 0 for padding and the end of a row."""
    scored: Tensor
    """Shape (rows, tokens - 1): whether TRL's value there belongs to a completion."""
    on_gpu: bool
    """Whether a GPU with FlashAttention computes it."""

    @classmethod
    def of(
        cls, ids: Tensor, mask: Tensor, labels: Tensor, *, on_gpu: bool | None = None
    ) -> "Layout | None":
        """Return the layout of a call by TRL; None if no two completions share a prompt.

        Args:
            ids, mask, labels: shape (rows, tokens), padded on either side. A prompt is the tokens
                before the first label; a row without labels has no value and is left out.
            on_gpu: for a memory plan, that the layout is for another device than that of `ids`.
        """
        device = ids.device
        if on_gpu is None:
            on_gpu = ids.is_cuda and torch.cuda.get_device_capability(device) >= (8, 0)
        ids, own, labels = ids.cpu(), mask.bool().cpu(), labels.cpu()  # the only wait for a GPU
        known = own & (labels != IGNORED)
        own &= known.any(1, keepdim=True)
        rank = own.cumsum(1) - 1
        # No token predicts the first token of a row.
        first = rank.where(known, ids.shape[1]).amin(1, keepdim=True).clamp(min=1)
        groups: dict[bytes, list[int]] = {}
        for row in own.any(1).nonzero()[:, 0].tolist():
            prompt = ids[row, own[row] & (rank[row] < first[row])]
            groups.setdefault(prompt.numpy().tobytes(), []).append(row)
        if all(len(members) == 1 for members in groups.values()):
            return None
        last = own.sum(1, keepdim=True) - 1
        fed = own & (rank < last)
        prompts, completions = fed & (rank < first - 1), fed & (rank >= first - 1)
        placed, padded, keys = _placed([*groups.values()], prompts, completions)
        end = int(placed.max()) + 1
        tokens, positions = ids.new_zeros(2, 1, end)
        targets = labels.new_full((1, end), IGNORED)
        tokens[0, placed[fed]], positions[0, placed[fed]] = ids[fed], rank[fed]
        scored = own & (rank >= first)
        targets[0, placed[completions]] = labels[scored]
        reals = [(each >= 0).to(device) for each in padded]
        every = torch.cat([each.flatten() for each in padded])
        return cls(
            tokens=tokens.to(device),
            positions=positions.to(device),
            targets=targets.to(device),
            blocks=[Block(*pair) for pair in zip(reals[::2], reals[1::2], strict=True)],
            padded=every.clamp(min=0).to(device),
            order=every.argsort()[int((every < 0).sum()) :].to(device),
            keys=torch.cat([each[each >= 0] for each in keys]).to(device),
            ends=(*_ends(padded, device), *_ends(keys, device)),
            places=placed.to(device),
            scored=scored[:, 1:].to(device),
            on_gpu=on_gpu,
        )

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


def packed_row(
    prompts: int, rows: int, prompt: int, tokens: int, *, on_gpu: bool
) -> dict[str, Any] | None:
    """Return the arguments of a model for `rows` of equal length; None if no prompt is shared."""
    ids = (torch.arange(rows) % prompts)[:, None].repeat(1, tokens)
    labels = ids.clone()
    labels[:, :prompt] = IGNORED
    layout = Layout.of(ids, torch.ones_like(ids), labels, on_gpu=on_gpu)
    return None if layout is None else layout.arguments()


def _placed(
    groups: Sequence[Sequence[int]], prompts: Tensor, completions: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the position of each token in the packed row, 0 for none.

    Also the positions of each block's prompts and completions, and those that each of them sees;
    rows of both are padded with -1.
    """
    placed, end = torch.zeros(prompts.shape, dtype=torch.long), 0
    padded, keys = [], []
    for alike in _alike(groups, prompts.sum(1), completions.sum(1)):
        members = [row for group in alike for row in group]
        before, end = _places(prompts[[group[0] for group in alike]], end)
        own, end = _places(completions[members], end)
        copies = before.repeat_interleave(len(alike[0]), 0)
        padded += [before, own]
        keys += [before, torch.cat([copies, own], 1)]
        found = placed[members]
        found[prompts[members]], found[completions[members]] = copies[copies >= 0], own[own >= 0]
        placed[members] = found
    return placed, padded, keys


def _alike(
    groups: Sequence[Sequence[int]], prompts: Tensor, completions: Tensor
) -> Iterator[list[Sequence[int]]]:
    """Yield groups of rows with equally many completions and similar lengths."""
    alike: list[Sequence[int]] = []
    sizes = {
        id(rows): (len(rows), int(prompts[rows[0]]), int(completions[rows].max()))
        for rows in groups
    }
    for rows in sorted(groups, key=lambda rows: sizes[id(rows)]):
        count, length, longest = sizes[id(rows)]
        if alike:
            others, shortest, least = sizes[id(alike[0])]
            near = length <= SPREAD * shortest + 8 and longest <= SPREAD * least + 8
            if count != others or not near:
                yield alike
                alike = []
        alike.append(rows)
    yield alike


def _places(tokens: Tensor, begin: int) -> tuple[Tensor, int]:
    """Return where the tokens of rows come in the packed row, -1 for padding, and the end."""
    sizes = tokens.sum(1, keepdim=True)
    columns = torch.arange(int(sizes.max()))
    places = columns + begin + sizes.cumsum(0) - sizes
    return places.where(columns < sizes, -1), begin + int(sizes.sum())


def _ends(places: Sequence[Tensor], device: torch.device) -> tuple[Tensor, int]:
    """Return where each row of places ends, after those before it, and the longest size."""
    sizes = torch.cat([(each >= 0).sum(1) for each in places])
    return pad(sizes.cumsum(0), (1, 0)).int().to(device), int(sizes.max())


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
