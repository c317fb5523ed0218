"""Score pairs of a chosen and a rejected response with a reward model.

The score is read at the last token that is not padding, as in transformers'
`*ForSequenceClassification`: the rightmost id other than the pad token's. If the pad token is also
the end-of-sequence token (GPT-2), this is the token before the end.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_rlhf.evaluation import Interval
from hf_rlhf_classic.encoding import encode_response
from hf_rlhf_classic.evaluation.estimators import calibration_gap
from hf_rlhf_classic.likelihood import Metrics, padded

Array = NDArray[np.float64]
BINS = 10
_FEWEST = 10
"""Number of pairs below which a bootstrap of a correlation or group difference is mostly luck."""
_ROUNDING = 1e-12


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
    texts = [
        tuple(encode_response(tokenizer, row, row[key]) for key in ("chosen", "rejected"))
        for row in rows
    ]
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


def tables(pairs: Sequence[Pair], clusters: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a reward model's results on `pairs`, as tables for the card; empty without pairs.

    `clusters` are the prompts by which the accuracy's interval resamples.
    """
    if not pairs:
        return {}
    return {
        "Pairwise accuracy": accuracy(pairs, clusters),
        "Scores": spread(pairs),
        "Length bias": length_bias(pairs),
        "Calibration": calibration(pairs),
    }


def accuracy(pairs: Sequence[Pair], clusters: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the share of correctly ordered pairs, with its 95% interval by pair or cluster."""
    mean = Interval.of_mean([pair.right for pair in pairs], clusters)
    assert mean is not None
    ends = _interval(mean.low, mean.high, f"all {mean.n} alike" if mean.n > 1 else "one pair")
    return {"pairs": mean.values, "accuracy": mean.mean, "95%": ends}


def spread(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return mean and standard deviation of the scores, for normalisation in a run."""
    both = np.array([(pair.chosen, pair.rejected) for pair in pairs])
    return {"mean": float(both.mean()), "std": float(both.std())}


def length_bias(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how much length determines the model's order.

    `delta` is the difference in accuracy between pairs with a longer chosen and with a longer
    rejected response: 0 for a model that ignores length, 1 for a model that uses nothing else
    (compare Singhal et al. 2023, arXiv:2310.03716). Correlations are Pearson's. Intervals are 95%
    percentile bootstraps over pairs.
    """
    right = np.array([pair.right for pair in pairs])
    longer = np.array([pair.longer for pair in pairs])

    def delta(weights: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            longer_chosen, longer_rejected = (
                (weights @ (right * (longer == sign))) / (weights @ (longer == sign))
                for sign in (1, -1)
            )
        return np.asarray(longer_chosen - longer_rejected)

    scores = np.array([(pair.chosen, pair.rejected) for pair in pairs])
    tokens = np.array([(pair.chosen_tokens, pair.rejected_tokens) for pair in pairs], dtype=float)
    margins, differences = np.diff(scores, axis=1), np.diff(tokens, axis=1)
    return {
        '"the longer is better" is right': float(1 + longer.mean()) / 2,
        "accuracy, longer one chosen": _mean(right[longer > 0]),
        "accuracy, longer one rejected": _mean(right[longer < 0]),
        **_with_interval("delta", delta, len(pairs)),
        **_with_interval(
            "correlation of score and length", _correlation(scores, tokens), len(pairs)
        ),
        **_with_interval(
            "correlation of margin and length difference",
            _correlation(margins, differences),
            len(pairs),
        ),
    }


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


def _with_interval(name: str, statistic: Callable[[Array], Array], count: int) -> dict[str, Any]:
    estimate = Interval.of_statistic(statistic, count)
    if estimate is None:
        return {name: None}
    few = f"no interval: fewer than {_FEWEST} pairs" if count < _FEWEST else ""
    ends = few or _interval(estimate.low, estimate.high, "the same in every resample")
    return {name: estimate.mean, f"{name}, 95%": ends}


def _interval(low: float, high: float, alike: str) -> str:
    """Return an interval's ends, or the reason for a width of 0, which would suggest certainty."""
    return f"no interval: {alike}" if low == high else f"{low:.3f} to {high:.3f}"


def _correlation(x: Array, y: Array) -> Callable[[Array], Array]:
    """Return Pearson's correlation of x and y, shape (pairs, values), by the pairs' weights."""
    x, y = x - x.mean(), y - y.mean()
    products = {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y}
    smallest = _ROUNDING * max(float((x * x).mean() * (y * y).mean()), _ROUNDING)

    def correlation(weights: Array) -> Array:
        count = weights.sum(axis=1) * x.shape[1]
        mean = {name: (weights @ sums.sum(axis=1)) / count for name, sums in products.items()}
        spread = (mean["xx"] - mean["x"] ** 2) * (mean["yy"] - mean["y"] ** 2)
        covariance = mean["xy"] - mean["x"] * mean["y"]
        # If x or y is constant, there is no correlation.
        valid = spread > smallest
        return np.where(valid, covariance / np.sqrt(np.where(valid, spread, 1.0)), np.nan)

    return correlation


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
