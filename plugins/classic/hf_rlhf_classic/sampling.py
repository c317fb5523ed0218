"""Sampling for PPO: every completion has its own random numbers, so a resumed run repeats it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_rlhf.evaluation import complete


def noise(seed: int, step: int, rows: Sequence[int], tokens: int) -> Tensor:
    """Return numbers in (0, 1], float32 (rows, tokens), by seed, step and row index."""
    drawn = [np.random.default_rng([seed, step, row]).random(tokens) for row in rows]
    return torch.from_numpy(1 - np.stack(drawn)).float()


def complete_by_length(
    model: Any, prompts: Sequence[Sequence[int]], uniform: Tensor, at_once: int, **sampling: Any
) -> list[list[int]]:
    """Return the result of `complete`, `at_once` prompts at a time, grouped by length."""
    result: dict[int, list[int]] = {}
    order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
    for start in range(0, len(prompts), at_once):
        rows = order[start : start + at_once]
        numbers = uniform[rows]
        batch = [prompts[row] for row in rows]
        created = complete(model, batch, numbers.shape[1], numbers, **sampling)
        result.update(zip(rows, created, strict=True))
    return [result[row] for row in range(len(prompts))]
