"""Sampling with numbers of its own for each row, by plain transformers `generate`.

What is sampled for a prompt depends on its own numbers, not on which prompts share its batch or on
how many processes there are, as far as the model's arithmetic does not.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, TopPLogitsWarper

from hf_rlhf.errors import ModelError


def seeded(seeds: Sequence[int], tokens: int) -> Tensor:
    """Return numbers in [0, 1), float64 (rows, tokens), each row's by its seed alone."""
    drawn = [
        torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in seeds
    ]
    return torch.stack(drawn)


class SampleByRow(LogitsProcessor):  # type: ignore[misc]
    """Samples by inverting the distribution function, at a number of the row's own.

    `generate` is left to take, greedily, the token that is chosen here, the only one with a finite
    score: its own sampling draws all rows from one stream, whose use depends on the other rows.

    Args:
        uniform: numbers in [0, 1], (rows, tokens); their dtype is the one that is computed in.
        temperature: above 0.
        top_p: the share of probability that is sampled from (Holtzman et al. 2020).
    """

    def __init__(self, uniform: Tensor, temperature: float, top_p: float = 1.0) -> None:
        self.uniform = uniform
        self.temperature = temperature
        self.warper = TopPLogitsWarper(top_p) if top_p < 1 else None
        self.step = 0

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Return scores of shape (rows, vocabulary) that leave one token to each row.

        Raises ModelError where the model's scores are not numbers.
        """
        scaled = scores.float() / self.temperature
        if self.warper is not None:
            scaled = self.warper(input_ids, scaled)
        cumulative = scaled.to(self.uniform.dtype).log_softmax(-1).exp().cumsum(-1)
        total = cumulative[:, -1:]
        if not bool(torch.isfinite(total).all()):
            raise ModelError(
                "the policy's scores are not finite: training has diverged. Start from an earlier "
                "checkpoint with a lower learning_rate."
            )
        # Above 0, so that a token of probability 0 is never the one.
        smallest = torch.finfo(total.dtype).tiny
        level = (self.uniform[:, self.step, None] * total).clamp(min=smallest)
        chosen = torch.searchsorted(cumulative, level).clamp(max=scores.shape[-1] - 1)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen, 0.0)
