"""Pairs of a chosen and a rejected response, scored by a reward model.

The score of a text is read off its last token that is not padding, as transformers'
`*ForSequenceClassification` do: the rightmost whose id is not the pad token's. Where the pad token
is the end-of-sequence token too (GPT-2), that is the one before the end.
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
"""Pairs below which a bootstrap of a correlation or of a difference of groups is mostly luck."""
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
    """Scores and lengths, in tokens, of the two responses of a single row."""

    chosen: float
    rejected: float
    chosen_tokens: int
    rejected_tokens: int

    @property
    def margin(self) -> float:
        """How much better the chosen response is scored."""
        return self.chosen - self.rejected

    @property
    def right(self) -> float:
        """1 if the chosen response has the higher score, 1/2 if both have the same."""
        return float(1 + np.sign(self.margin)) / 2

    @property
    def longer(self) -> int:
        """1 if the chosen response is the longer one, -1 if the rejected one is, 0 for neither."""
        return int(np.sign(self.chosen_tokens - self.rejected_tokens))


def read_pairs(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    max_length: int | None,
) -> list[Pair | None]:
    """Score both responses of each row `{prompt, chosen, rejected}`.

    None stands for a pair with a text of more than `max_length` tokens, prompt included: TRL does
    not train on it.
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
    """Return the fields of a pair, each None where there is none."""
    return asdict(pair) if pair else {item.name: None for item in fields(Pair)}


def row_metrics(pair: Pair | None) -> Metrics:
    """Return what one pair says of the model; None where it says nothing."""
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
    """Return how a reward model does on `pairs`, as tables for the card; nothing for no pairs.

    `clusters` are the prompts of pairs that the interval of the accuracy is to keep together.
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
    """Return the share of pairs in the right order, with its 95% interval over pairs.

    Or over `clusters` of them.
    """
    mean = Interval.of_mean([pair.right for pair in pairs], clusters)
    assert mean is not None
    ends = _interval(mean.low, mean.high, f"all {mean.n} alike" if mean.n > 1 else "one pair")
    return {"pairs": mean.values, "accuracy": mean.mean, "95%": ends}


def spread(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return mean and standard deviation of the scores, by which a run may normalise them."""
    both = np.array([(pair.chosen, pair.rejected) for pair in pairs])
    return {"mean": float(both.mean()), "std": float(both.std())}


def length_bias(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how much of the model's order is length.

    `delta` is its accuracy on pairs whose longer response is the chosen one, less that on pairs
    whose longer response is the rejected one: 0 for a model that does not look at length, 1 for one
    that looks at nothing else (compare Singhal et al. 2023, arXiv:2310.03716). Correlations are
    Pearson's. Intervals are percentile bootstraps over pairs, 95%.
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

    Under Bradley-Terry, that is the probability that the response scored higher is the chosen one;
    the error is its distance from how often that is so (Guo et al. 2017, arXiv:1706.04599, eq. 3).
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
    """Return an interval's ends; of one without width, which would look like certainty, why."""
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
        # Where one of them does not vary, there is no correlation.
        valid = spread > smallest
        return np.where(valid, covariance / np.sqrt(np.where(valid, spread, 1.0)), np.nan)

    return correlation


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None
