"""Log-probabilities of codec tokens: one place for every form in which models write speech.

* flat: a causal language model whose tokens stand one after the other, as Llama-form speech models
  (Orpheus, Llasa, OuteTTS) write them;
* parallel with a delay: a decoder with a head for each codebook, which predicts codebook `k` of a
  frame `delay[k]` steps later (MusicGen and Parler-TTS: 0, 1, 2, ...; Dia: its config's);
* depth: a backbone for the first codebook, and a small decoder for the others of the same frame
  (CSM).

All return the sum over the tokens of each utterance, in nats, shape (batch,).
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


def flat_log_probs(
    model: Any, input_ids: Tensor, attention_mask: Tensor, completion_mask: Tensor
) -> Tensor:
    """Return the log-probability of the completion in each row, given what is before it.

    Args:
        model: a causal language model.
        input_ids: prompt and completion, (batch, length), padded on either side.
        attention_mask: 0 for padding.
        completion_mask: 1 for the tokens of the completion.
    """
    positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        input_ids=input_ids, attention_mask=attention_mask, position_ids=positions
    ).logits
    labels = input_ids.masked_fill(completion_mask == 0, IGNORED)[:, 1:]
    return token_log_probs(logits[:, :-1], labels).sum(-1)


def delayed(
    codes: Tensor, lengths: Tensor, delays: Sequence[int], start: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Return the decoder's inputs and labels for codes, both (batch, codebooks, steps).

    Step `t` reads what is left of it and predicts frame `t - delays[k]` of codebook `k`. Labels are
    -100 where there is no such frame: the log-probability is of the codes alone.

    Args:
        codes: (batch, codebooks, frames).
        lengths: frames of each utterance, (batch,).
        delays: steps by which each codebook is late, the first 0.
        start: the id before an utterance.
        pad: the id behind it.
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
    decoder_inputs: str = "decoder_input_ids",
    frame_major: bool = False,
) -> Tensor:
    """Return the log-probability of each utterance's codes under a decoder with parallel heads.

    Args:
        model: its logits are (batch * codebooks, steps, V), as MusicGen's, Parler-TTS' and Dia's.
        codes: (batch, codebooks, frames).
        lengths: frames of each utterance.
        delays: see `delayed`.
        start: the id before an utterance.
        pad: the id behind it.
        conditions: the other arguments of the model, such as `input_ids` of the text.
        decoder_inputs: the name of its argument for codes; `input_ids` for a decoder alone.
        frame_major: its inputs are (batch, steps, codebooks), as Dia's, and not
            (batch * codebooks, steps).
    """
    batch, codebooks, _ = codes.shape
    inputs, labels = delayed(codes, lengths, delays, start, pad)
    shaped = inputs.transpose(1, 2).contiguous() if frame_major else inputs.flatten(0, 1)
    logits = model(**{**conditions, decoder_inputs: shaped}).logits
    logits = logits[:, -inputs.shape[2] :].unflatten(0, (batch, codebooks))
    return token_log_probs(logits, labels).sum((1, 2))


def depth_log_probs(
    model: Any, inputs_embeds: Tensor, attention_mask: Tensor, codes: Tensor, frame_mask: Tensor
) -> Tensor:
    """Return the log-probability of each utterance's codes under a backbone and a depth decoder.

    Args:
        model: of CSM's form (`CsmForConditionalGeneration`).
        inputs_embeds: of text and frames, (batch, length, hidden), as its processor orders them.
        attention_mask: 0 for padding.
        codes: (batch, length, codebooks), of which those of `frame_mask` count.
        frame_mask: 1 where a position is a frame of the utterance, (batch, length); not the first.
    """
    hidden = model.backbone_model(
        inputs_embeds=inputs_embeds, attention_mask=attention_mask
    ).last_hidden_state
    row, position = frame_mask.bool().nonzero(as_tuple=True)
    # A frame is predicted from the position before it.
    before, frames = hidden[row, position - 1], codes[row, position]
    first = token_log_probs(model.lm_head(before), frames[:, 0])
    # The backbone's state takes the place of the first input; the last codebook predicts nothing.
    shifted = torch.nn.functional.pad(frames[:, :-1], (1, 0))
    logits = model.depth_decoder(input_ids=shifted, backbone_last_hidden_state=before).logits
    others = token_log_probs(logits, frames[:, 1:]).sum(-1)
    return torch.zeros(len(codes), device=first.device).index_add(0, row, first + others)
