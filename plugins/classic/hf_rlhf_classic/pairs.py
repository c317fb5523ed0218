"""Score pairs of a chosen and a rejected response with a reward model.

The score is read at the last token that is not padding, as in transformers'
`*ForSequenceClassification`: the rightmost id other than the pad token's. If the pad token is also
the end-of-sequence token (GPT-2), this is the token before the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from hf_rlhf_classic.encoding import encode_responses
from hf_rlhf_classic.evaluation.estimators import calibration_gap
from hf_rlhf_classic.likelihood import Metrics, padded

BINS = 10


def scores(model: Any, sequences: Sequence[Sequence[int]], pad: int, batch: int) -> list[float]:
    """Return the reward of each sequence of token ids, in order, `batch` at a time."""
    import torch

    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    rewards: dict[int, float] = {}
    for start in range(0, len(order), batch):
        taken = order[start : start + batch]
        ids, mask = padded([sequences[index] for index in taken], pad, model.device)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        rewards.update(zip(taken, logits.float().squeeze(-1).tolist(), strict=True))
    return [rewards[index] for index in range(len(sequences))]


@dataclass(frozen=True)
class Pair:
    """Scores and token lengths of a row's two responses."""

    chosen: float
    rejected: float
    chosen_tokens: int
    rejected_tokens: int

    @property
    def margin(self) -> float:
        """The chosen minus the rejected score."""
        return self.chosen - self.rejected

    @property
    def right(self) -> float:
        """1 if the chosen response has the higher score, 1/2 for equal scores, else 0."""
        return float(1 + np.sign(self.margin)) / 2

    @property
    def longer(self) -> int:
        """1 if the chosen response is longer, -1 if the rejected response is, 0 if neither."""
        return int(np.sign(self.chosen_tokens - self.rejected_tokens))


def read_pairs(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    max_length: int | None,
) -> list[Pair | None]:
    """Score both responses of each row `{prompt, chosen, rejected}`.

    None for a pair with a text of more than `max_length` tokens, prompt included; TRL does not
    train on it.
    """
    sides = [
        encode_responses(tokenizer, rows, [row[key] for row in rows])
        for key in ("chosen", "rejected")
    ]
    texts = list(zip(*sides, strict=True))
    short_enough = [
        index
        for index, both in enumerate(texts)
        if max_length is None or max(len(text.ids) for text in both) <= max_length
    ]
    sequences = [text.ids for index in short_enough for text in texts[index]]
    rewards = scores(model, sequences, tokenizer.pad_token_id, 2 * len(rows))
    pairs: list[Pair | None] = [None] * len(rows)
    both_rewards = zip(rewards[::2], rewards[1::2], strict=True)
    for index, (chosen, rejected) in zip(short_enough, both_rewards, strict=True):
        pairs[index] = Pair(chosen, rejected, *(sum(text.counted) for text in texts[index]))
    return pairs


def as_metrics(pair: Pair | None) -> Metrics:
    """Return the fields of a pair, each None without a pair."""
    return asdict(pair) if pair else {item.name: None for item in fields(Pair)}


def row_metrics(pair: Pair | None) -> Metrics:
    """Return a pair's metrics; None without a pair."""
    longer = pair.longer if pair else 0
    return {
        "pair_accuracy": pair.right if pair else None,
        "margin": pair.margin if pair else None,
        "pair_loss": math.log1p(math.exp(-abs(pair.margin))) + max(-pair.margin, 0.0)
        if pair
        else None,
        "accuracy_longer_chosen": pair.right if pair and longer > 0 else None,
        "accuracy_longer_rejected": pair.right if pair and longer < 0 else None,
    }


def tables(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return a reward model's results on `pairs`, as tables for the card; empty without pairs."""
    if not pairs:
        return {}
    return {
        "Scores": spread(pairs),
        "Calibration": calibration(pairs),
    }


def spread(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return mean and standard deviation of the scores, for normalisation in a run."""
    both = np.array([(pair.chosen, pair.rejected) for pair in pairs])
    return {"mean": float(both.mean()), "std": float(both.std())}


def calibration(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the expected calibration error of sigmoid(|margin|), in ten bins from 0.5 to 1.

    Under Bradley-Terry it is the probability that the chosen response scores higher; the error is
    its distance from the observed frequency (Guo et al. 2017, arXiv:1706.04599, eq. 3).
    """
    sure = 1 / (1 + np.exp(-np.abs([pair.margin for pair in pairs])))
    right = np.array([pair.right for pair in pairs])
    # The upper half of twice as many bins.
    error = calibration_gap(sure, right, 2 * BINS)
    confidence = float(sure.mean())
    return {"pairs": len(pairs), "expected calibration error": error, "mean confidence": confidence}
