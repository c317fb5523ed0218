"""Log-probabilities of codec tokens under a decoder with a head per codebook.

Codebook `k` of a frame is predicted `delay[k]` steps later, as in Dia's configuration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

IGNORED = -100


def token_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each label, 0 where it is -100; (..., V), (...) -> (...)."""
    safe = labels.clamp(min=0)
    chosen = logits.float().gather(-1, safe[..., None])[..., 0]
    return (chosen - logits.float().logsumexp(-1)).masked_fill(labels == IGNORED, 0.0)


def delayed(
    codes: Tensor, lengths: Tensor, delays: Sequence[int], start: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Return the decoder's inputs and labels for codes, both (batch, codebooks, steps).

    Step `t` reads the earlier steps and predicts frame `t - delays[k]` of codebook `k`. Labels are
    -100 without such a frame: the log-probability is of the codes alone.

    Args:
        codes: (batch, codebooks, frames).
        lengths: frames of each utterance, (batch,).
        delays: delay of each codebook in steps, the first 0.
        start: the id before an utterance.
        pad: the id after it.
    """
    batch, codebooks, frames = codes.shape
    steps = frames + max(delays)
    step = torch.arange(steps, device=codes.device)
    frame = step[None] - torch.tensor(delays, device=codes.device)[:, None]
    spread = codes.gather(2, frame.clamp(0, frames - 1).expand(batch, codebooks, steps))
    exists = (frame >= 0) & (frame < lengths[:, None, None])
    labels = spread.masked_fill(~exists, IGNORED)
    row = torch.where(frame < 0, start, torch.where(exists, spread, pad))
    before = torch.full((batch, codebooks, 1), start, dtype=codes.dtype, device=codes.device)
    return torch.cat([before, row[..., :-1]], dim=2), labels


def delayed_log_probs(
    model: Any,
    codes: Tensor,
    lengths: Tensor,
    delays: Sequence[int],
    *,
    start: int,
    pad: int,
    conditions: Mapping[str, Any],
) -> Tensor:
    """Return the log-probability of each utterance's codes in nats, summed: (batch,).

    Args:
        model: takes codes as (batch, steps, codebooks), and its logits are (batch * codebooks,
            steps, V), as in Dia.
        codes: (batch, codebooks, frames).
        lengths: frames of each utterance.
        delays: see `delayed`.
        start: the id before an utterance.
        pad: the id after it.
        conditions: the other arguments of the model, for example `input_ids` of the text.
    """
    batch, codebooks, _ = codes.shape
    inputs, labels = delayed(codes, lengths, delays, start, pad)
    decoder_input_ids = inputs.transpose(1, 2).contiguous()
    logits = model(**conditions, decoder_input_ids=decoder_input_ids).logits
    logits = logits[:, -inputs.shape[2] :].unflatten(0, (batch, codebooks))
    return token_log_probs(logits, labels).sum((1, 2))
