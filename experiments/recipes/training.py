"""Training by hand-written stages, and sampling, of the models that the recipes make."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100
"""The label of a token for which the loss does not count."""
WARM_UP = 50
"""Steps over which the learning rate rises."""
Schedule = Callable[[int], float]
"""Number of a step, from 1 -> share of the learning rate."""


def padded(
    rows: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int
) -> tuple["Tensor", "Tensor"]:
    """Return the ids and labels of rows, each (rows, longest), padded on the right.

    Causal attention needs no mask for the padding. Labels are padded with IGNORED.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids, labels = ([torch.tensor(row) for row in side] for side in zip(*rows, strict=True))
    return pad_sequence(ids, True, pad), pad_sequence(labels, True, IGNORED)


def warm_up(step: int) -> float:
    """Rise over the first 50 steps, then stay."""
    return min(1.0, step / WARM_UP)


def warm_up_and_decay(steps: int) -> Schedule:
    """Rise over the first 50 steps, and fall to 0.02 over the second half of `steps`."""
    return lambda step: min(warm_up(step), max(0.02, 2 * (1 - step / steps)))


def train(
    model: Any,
    name: str,
    losses: Iterator["Tensor"],
    steps: int,
    learning_rate: float,
    schedule: Schedule,
    *,
    enough: float = -math.inf,
    smoothing: float = 0.02,
    every: int = 100,
) -> float:
    """Take AdamW steps with gradients clipped to norm 1; return the smoothed loss.

    Args:
        model: all of its parameters are trained.
        name: of the stage, for the progress lines.
        losses: computes a fresh scalar loss per step, with the weights as they then are.
        steps: at most so many.
        learning_rate: at a share of 1.
        schedule: the share of it that a step has.
        enough: stop when the smoothed loss is below this.
        smoothing: share of the newest loss in the smoothed one.
        every: steps between two printed lines.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    smooth, started = math.inf, time.perf_counter()
    for step, loss in enumerate(islice(losses, steps), start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * schedule(step)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = float(loss.detach())
        smooth = value if step == 1 else (1 - smoothing) * smooth + smoothing * value
        if step % every == 0:
            seconds = time.perf_counter() - started
            print(f"{name} step {step} loss {smooth:.3f} {seconds:.0f} s", flush=True)
        if smooth < enough:
            break
    return smooth


def sample(
    model: Any, tokenizer: Any, batch: Any, length: int, *, seed: int = 0, greedy: bool = False
) -> list[str]:
    """Return one completion per row of a padded batch, special tokens left out.

    Sampled at temperature 1 from all tokens, at most `length` of them; `greedy`: the likeliest.
    """
    import torch

    torch.manual_seed(seed)
    choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
    model.eval()
    with torch.inference_mode():
        out = model.generate(**batch, **choice, max_new_tokens=length)
    model.train()
    width = batch["input_ids"].shape[1]
    texts: list[str] = tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
    return texts
