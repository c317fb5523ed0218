"""Packs the rows of a call into a single row with each prompt once, before its completions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

LAYOUT = "prompt_layout"
"""The keyword argument by which a model passes the layout to its attention."""
IGNORED = -100


@dataclass(frozen=True)
class Layout:
    """Rows of a batch, packed into one with each prompt once."""

    tokens: Tensor
    """Shape (1, packed)."""
    positions: Tensor
    """Shape (1, packed): the position ids, as for a row alone."""
    targets: Tensor
    """Shape (1, packed): the token that each token predicts, -100 where it is not scored."""
    prompts: Tensor
    """Shape (prompts, longest): whether there is a token, not padding. The last token of a prompt
    begins each of its completions, since it predicts their first token."""
    completions: Tensor
    """Shape (completions, longest): the same."""
    owners: Tensor
    """The number of the prompt of each completion."""
    padded: Tensor
    """Positions in the packed row of prompts, then of completions, with padding."""
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
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Attention masks of prompts and completions, by the size of the sliding window."""

    @classmethod
    def of(
        cls, ids: Tensor, mask: Tensor, labels: Tensor, *, on_gpu: bool | None = None
    ) -> "Layout | None":
        """Return the layout of a call by TRL; None if no two completions share a prompt.

        Args:
            ids, mask, labels: shape (rows, tokens), padded on either side. A prompt is the tokens
                before the first label; a row without labels has no value and is left out.
            on_gpu: for a memory plan, that the layout is for another device than `ids` is on.
        """
        device = ids.device
        if on_gpu is None:
            on_gpu = ids.is_cuda and torch.cuda.get_device_capability(device) >= (8, 0)
        ids, real, labels = ids.cpu(), mask.bool().cpu(), labels.cpu()  # the only wait for a GPU
        known = real & (labels != IGNORED)
        real &= known.any(1, keepdim=True)
        rank = real.cumsum(1) - 1
        # No token predicts the first token of a row.
        first = rank.where(known, ids.shape[1]).amin(1, keepdim=True).clamp(min=1)
        groups: dict[bytes, list[int]] = {}
        for row in real.any(1).nonzero()[:, 0].tolist():
            prompt = ids[row, real[row] & (rank[row] < first[row])]
            groups.setdefault(prompt.numpy().tobytes(), []).append(row)
        if all(len(members) == 1 for members in groups.values()):
            return None
        last = real.sum(1, keepdim=True) - 1
        fed = real & (rank < last)
        prompts, completions = fed & (rank < first - 1), fed & (rank >= first - 1)
        members = [row for group in groups.values() for row in group]
        owners = torch.tensor([at for at, group in enumerate(groups.values()) for _ in group])
        before, end = _places(prompts[[group[0] for group in groups.values()]], 0)
        own, end = _places(completions[members], end)
        copies = before[owners]
        placed, found = torch.zeros_like(ids), torch.zeros_like(ids[members])
        found[prompts[members]], found[completions[members]] = copies[copies >= 0], own[own >= 0]
        placed[members] = found
        tokens, positions = ids.new_zeros(2, 1, end)
        targets = labels.new_full((1, end), IGNORED)
        tokens[0, placed[fed]], positions[0, placed[fed]] = ids[fed], rank[fed]
        scored = real & (rank >= first)
        targets[0, placed[completions]] = labels[scored]
        padded, keys = (before, own), (before, torch.cat([copies, own], 1))
        every = torch.cat([each.flatten() for each in padded])
        return cls(
            tokens=tokens.to(device),
            positions=positions.to(device),
            targets=targets.to(device),
            prompts=(before >= 0).to(device),
            completions=(own >= 0).to(device),
            owners=owners.to(device),
            padded=every.clamp(min=0).to(device),
            order=every.argsort()[int((every < 0).sum()) :].to(device),
            keys=torch.cat([each[each >= 0] for each in keys]).to(device),
            ends=(*_ends(padded, device), *_ends(keys, device)),
            places=placed.to(device),
            scored=scored[:, 1:].to(device),
            on_gpu=on_gpu,
        )

    def seen(self, window: int | None) -> tuple[Tensor, Tensor]:
        """Return the attention masks of prompts and of completions, if padded."""
        if window not in self.masks:
            before = self.prompts.shape[1]
            columns = torch.arange(before + self.completions.shape[1], device=self.prompts.device)
            lengths = self.prompts.sum(1, keepdim=True)[self.owners]
            # A completion starts where its own prompt ends, not where the longest prompt ends.
            places = columns.where(columns < before, columns - before + lengths)
            fills = (columns < before) & (columns >= lengths)
            outer = _sees(places[:, before:, None], places[:, None], window) & ~fills[:, None]
            inner = _sees(columns[:before, None], columns[:before], window)
            self.masks[window] = inner, outer[:, None]
        return self.masks[window]

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
