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

from hf_rlhf.evaluation import bootstrap_mean
from hf_rlhf_classic.encoding import encode_response
from hf_rlhf_classic.likelihood import Metrics, padded

RESAMPLES = 2_000
BINS = 10
FEW = 10
"""Of fewer pairs, a bootstrap of a correlation or of a difference of groups is mostly luck."""


def scores(model: Any, sequences: Sequence[Sequence[int]], pad: int, batch: int) -> list[float]:
    """Return the reward of each sequence of token ids, in order, `batch` at a time."""
    import torch

    order = sorted(range(len(sequences)), key=lambda place: len(sequences[place]))
    found: dict[int, float] = {}
    for start in range(0, len(order), batch):
        taken = order[start : start + batch]
        ids, mask = padded([sequences[place] for place in taken], pad, model.device)
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        found.update(zip(taken, logits.float().squeeze(-1).tolist(), strict=True))
    return [found[place] for place in range(len(sequences))]


@dataclass(frozen=True)
class Pair:
    """Scores and lengths, in tokens, of the two responses of one row."""

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
        return _credit(self.margin)

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
    kept = [
        place
        for place, both in enumerate(texts)
        if max_length is None or max(len(one.ids) for one in both) <= max_length
    ]
    sequences = [one.ids for place in kept for one in texts[place]]
    found = scores(model, sequences, tokenizer.pad_token_id, 2 * len(rows))
    pairs: list[Pair | None] = [None] * len(rows)
    for index, place in enumerate(kept):
        chosen, rejected = (sum(one.counted) for one in texts[place])
        pairs[place] = Pair(found[2 * index], found[2 * index + 1], chosen, rejected)
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


def tables(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return how a reward model does on `pairs`, as tables for the card; nothing for no pairs."""
    if not pairs:
        return {}
    return {
        "Pairwise accuracy": accuracy(pairs),
        "Scores": spread(pairs),
        "Length bias": length_bias(pairs),
        "Calibration": calibration(pairs),
    }


def accuracy(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the share of pairs in the right order, with its 95% interval over pairs."""
    found = bootstrap_mean([pair.right for pair in pairs])
    said = _interval(found.low, found.high, f"all {found.n} alike" if found.n > 1 else "one pair")
    return {"pairs": found.n, "accuracy": found.mean, "95%": said}


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

    def delta(taken: NDArray[np.int64]) -> float:
        chosen, rejected = (right[taken][longer[taken] == sign] for sign in (1, -1))
        return float(chosen.mean() - rejected.mean()) if len(chosen) and len(rejected) else np.nan

    result: dict[str, Any] = {
        '"the longer is better" is right': float(np.mean([_credit(one) for one in longer])),
        "accuracy, longer one chosen": _mean(right[longer > 0]),
        "accuracy, longer one rejected": _mean(right[longer < 0]),
        **_with_interval("delta", delta, len(pairs)),
    }
    texts = np.array([(pair.chosen, pair.rejected) for pair in pairs])
    lengths = np.array([(pair.chosen_tokens, pair.rejected_tokens) for pair in pairs])

    def of_score(taken: NDArray[np.int64]) -> float:
        return _correlation(texts[taken].ravel(), lengths[taken].ravel())

    def of_margin(taken: NDArray[np.int64]) -> float:
        both = (np.diff(values[taken], axis=1).ravel() for values in (texts, lengths))
        return _correlation(*both)

    result |= _with_interval("correlation of score and length", of_score, len(pairs))
    result |= _with_interval("correlation of margin and length difference", of_margin, len(pairs))
    return result


def calibration(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the expected calibration error of sigmoid(|margin|), in ten bins from 0.5 to 1.

    Under Bradley-Terry, that is the probability that the response scored higher is the chosen one;
    the error is its distance from how often that is so (Guo et al. 2017, arXiv:1706.04599, eq. 3).
    """
    sure = 1 / (1 + np.exp(-np.abs([pair.margin for pair in pairs])))
    right = np.array([pair.right for pair in pairs])
    bins = np.minimum(((sure - 0.5) * 2 * BINS).astype(int), BINS - 1)
    error = sum(
        abs(float((right[bins == one] - sure[bins == one]).sum())) / len(pairs)
        for one in np.unique(bins)
    )
    confidence = float(sure.mean())
    return {"pairs": len(pairs), "expected calibration error": error, "mean confidence": confidence}


def _with_interval(
    name: str, statistic: Callable[[NDArray[np.int64]], float], count: int
) -> dict[str, Any]:
    value = statistic(np.arange(count))
    if math.isnan(value):
        return {name: None}
    if count < FEW:
        return {name: value, f"{name}, 95%": f"no interval: fewer than {FEW} pairs"}
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(0, count, count)) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    said = _interval(float(low), float(high), "the same in every resample")
    return {name: value, f"{name}, 95%": said}


def _interval(low: float, high: float, alike: str) -> str:
    """Return an interval's ends; of one without width, which would look like certainty, why."""
    return f"no interval: {alike}" if low == high else f"{low:.3f} to {high:.3f}"


def _correlation(one: NDArray[Any], other: NDArray[Any]) -> float:
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def _credit(difference: float) -> float:
    return 0.5 if difference == 0 else float(difference > 0)
