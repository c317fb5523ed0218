"""Helpers of the generation loop for transformers: a sampler, a streamer, a stop signal."""

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria, TextStreamer, TopPLogitsWarper

from hf_rlhf.errors import ModelError


def seeded(seeds: Sequence[int], tokens: int) -> Tensor:
    """Return random numbers in [0, 1), float64 (rows, tokens); each row depends on its seed."""
    drawn = [
        torch.rand(tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        for seed in seeds
    ]
    return torch.stack(drawn)


class SampleByRow(LogitsProcessor):  # type: ignore[misc]
    """Samples by inverting the cumulative distribution at each row's random number.

    Only the sampled token keeps a finite score, so `generate` selects it greedily. `generate`
    itself samples all rows from one stream, so that rows depend on each other.

    Args:
        uniform: numbers in [0, 1], (rows, tokens); their dtype sets the computation's.
        temperature: above 0.
        top_p: the share of the probability mass to sample from (Holtzman et al. 2020).
    """

    def __init__(self, uniform: Tensor, temperature: float, top_p: float = 1.0) -> None:
        self.uniform = uniform
        self.temperature = temperature
        self.warper = TopPLogitsWarper(top_p) if top_p < 1 else None
        self.step = 0

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        """Return scores of shape (rows, vocabulary), finite for a single token of each row.

        Raises ModelError if the model's scores are NaN.
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
        # Above 0, so that a token of probability 0 is never chosen.
        smallest = torch.finfo(total.dtype).tiny
        level = (self.uniform[:, self.step, None] * total).clamp(min=smallest)
        chosen = torch.searchsorted(cumulative, level).clamp(max=scores.shape[-1] - 1)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen, 0.0)


class TextTo(TextStreamer):  # type: ignore[misc]
    """Passes on the text of a completion in whole words."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Pass on the final part of the text."""
        if text:
            self.on_text(text)


class StopWhenSet(StoppingCriteria):  # type: ignore[misc]
    """Ends a generation when an event is set."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Return whether each row is done."""
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)
