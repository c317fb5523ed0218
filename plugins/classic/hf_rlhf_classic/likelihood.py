"""The likelihood of given responses under a model, the held-out measure of SFT and DPO."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_rlhf.config import EvaluationSpec
from hf_rlhf.contracts import Score
from hf_rlhf.runs import Run
from hf_rlhf_classic.encoding import Encoded

if TYPE_CHECKING:
    from torch import Tensor

Metrics = dict[str, Score]
"""The metrics of a row by name. None: not defined for the row."""
LOGITS_AT_ONCE = 2**27
"""Maximum elements in a batch's logits, batch x tokens x vocabulary: 0.5 GB as float32."""


def batch_size(run: Run) -> int:
    """Return the number of held-out rows per measurement batch."""
    return (run.spec.evaluation or EvaluationSpec()).batch_size


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of the counted tokens of a sequence."""

    log_probs: Sequence[float]
    """Natural logarithm of each token's probability given the preceding tokens."""
    top: Sequence[bool]
    """Whether it is the model's most likely token."""

    @property
    def total(self) -> float:
        """Return the response's log-probability in nats: 0 without counted tokens."""
        return math.fsum(self.log_probs)


def likelihoods(
    model: Any, sequences: Sequence[Encoded], tokenizer: Any, *, temperature: float = 1.0
) -> list[Likelihood]:
    """Return the likelihood of each sequence under a causal `model`, in order, without first
    tokens.

    Log-probabilities come from the softmax at `temperature`. Sequences share a batch up to
    `LOGITS_AT_ONCE`.
    """
    order = sorted(range(len(sequences)), key=lambda position: len(sequences[position].ids))
    result: dict[int, Likelihood] = {}
    vocabulary = model.config.get_text_config().vocab_size
    while order:
        # Sorted, so the last sequence of a batch is the longest.
        fits = LOGITS_AT_ONCE // (max(len(sequences[order[-1]].ids), 1) * vocabulary)
        taken, order = order[-max(fits, 1) :], order[: -max(fits, 1)]
        batch = [sequences[position] for position in taken]
        rows = _batch(model, batch, tokenizer.pad_token_id, temperature)
        result.update(zip(taken, rows, strict=True))
    return [result[index] for index in range(len(sequences))]


def _batch(model: Any, batch: Sequence[Encoded], pad: int, temperature: float) -> list[Likelihood]:
    import torch

    ids, mask = padded([item.ids for item in batch], pad, model.device)
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    result = []
    for row, item in enumerate(batch):
        predicted = logits[row, : len(item.ids) - 1].float() / temperature
        result.append(_of_row(predicted, ids[row, 1 : len(item.ids)], item))
    return result


def padded(sequences: Sequence[Sequence[int]], pad: int, device: Any) -> "tuple[Tensor, Tensor]":
    """Return ids and attention mask, both (batch, longest), padded on the right."""
    import torch

    longest = max(len(ids) for ids in sequences)
    ids = torch.full((len(sequences), longest), pad)
    mask = torch.zeros((len(sequences), longest), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    return ids.to(device), mask.to(device)


def _of_row(logits: "Tensor", targets: "Tensor", encoded: Encoded) -> Likelihood:
    import torch

    counted = torch.tensor(list(encoded.counted[1:]), dtype=torch.bool, device=logits.device)
    remaining, wanted = logits[counted], targets[counted]
    chosen = remaining.gather(1, wanted[:, None]).squeeze(1) - remaining.logsumexp(1)
    return Likelihood(chosen.tolist(), (remaining.argmax(1) == wanted).tolist())
