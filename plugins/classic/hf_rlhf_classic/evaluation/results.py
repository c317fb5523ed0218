"""From completions, scores and log-probabilities to the numbers of the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_rlhf.evaluation import Interval, by_prompt, minus, ratio_interval, table_interval
from hf_rlhf.rewards import TOTAL
from hf_rlhf_classic.evaluation.compare import Compared, position_bias
from hf_rlhf_classic.evaluation.estimators import k1, k3, tally

METHOD = "95% percentile bootstrap over prompts, 10000 resamples; a prompt's completions averaged"
METHOD_OF_SEEDS = (
    "95% hierarchical percentile bootstrap, 10000 resamples: checkpoints of one name are drawn "
    "first (seeds), then prompts, the same for all; a prompt's completions averaged"
)
Score = float | None


@dataclass(frozen=True)
class Measured:
    """One checkpoint on all prompts. A prompt's completions stand together in each list."""

    metrics: Mapping[str, Sequence[Score]]
    """`total`, every reward's label, `completion_tokens` and `truncated`."""
    per_prompt: int
    log_p: Sequence[Sequence[float]] = ()
    """Of each completion's tokens, under the checkpoint itself."""
    log_q: Sequence[Sequence[float]] = ()
    """Of the same tokens under the reference; empty where there is no KL."""

    texts: Sequence[str] = ()
    seconds: float = 0.0
    """That generating took."""

    def by_prompt(self, values: Sequence[Score]) -> list[Score]:
        """Return the mean of each prompt's completions; None where none has a value."""
        return by_prompt(values, self.per_prompt)


@dataclass(frozen=True)
class Row:
    """One name of the table: its checkpoints (seeds), and what they are compared with."""

    mine: Sequence[Measured]
    baseline: Sequence[Measured] | None = None
    """For each of mine, the checkpoint of the baseline; None for the baseline itself."""
    reference: Sequence[Measured] | None = None
    """For each of mine, the checkpoint of the reference; None where KL is not measured."""
    compared: Mapping[str, Sequence[Compared]] = field(default_factory=dict)
    """For each comparison, the outcomes of each of mine."""


def results_of(row: Row) -> dict[str, Any]:
    """Return every number that is known of a row, as JSON: intervals with mean, low, high, n."""
    result: dict[str, Any] = {
        "checkpoints": len(row.mine),
        "metrics": _metrics(row.mine),
        "reward_std": _spread(row.mine),
        "difference": None,
        "win_rate": None,
        "kl": None,
        "reward_per_nat": None,
    }
    if row.baseline is not None:
        result["difference"] = {
            name: _json(table_interval(_difference(row.mine, row.baseline, name)))
            for name in result["metrics"]
        }
        result["win_rate"] = {
            name: _win_rate(row.mine, compared) for name, compared in row.compared.items()
        }
    if row.reference is not None:
        result["kl"] = _kl(row.mine)
        result["reward_per_nat"] = _reward_per_nat(row.mine, row.reference, result["kl"])
    return result


def _metrics(mine: Sequence[Measured]) -> dict[str, Any]:
    names = list(mine[0].metrics)
    return {
        name: _json(
            table_interval([measured.by_prompt(measured.metrics[name]) for measured in mine])
        )
        for name in names
    }


def _spread(mine: Sequence[Measured]) -> dict[str, float] | None:
    """Return the standard deviation of the total over completions, and over prompts' means.

    Each is of one checkpoint (ddof 0), averaged over the checkpoints.
    """
    spreads: dict[str, list[float]] = {"completions": [], "prompts": []}
    for measured in mine:
        totals = measured.metrics.get(TOTAL) or []
        for name, values in (("completions", totals), ("prompts", measured.by_prompt(totals))):
            if known := [value for value in values if value is not None]:
                spreads[name].append(float(np.std(known)))
    if not spreads["completions"]:
        return None
    return {name: sum(values) / len(values) for name, values in spreads.items()}


def _difference(
    mine: Sequence[Measured], others: Sequence[Measured], name: str
) -> list[list[Score]]:
    table = []
    for measured, other in zip(mine, others, strict=True):
        pairs = zip(
            measured.by_prompt(measured.metrics[name]),
            other.by_prompt(other.metrics[name]),
            strict=True,
        )
        table.append([minus(a, b) for a, b in pairs])
    return table


def _win_rate(mine: Sequence[Measured], compared: Sequence[Compared]) -> dict[str, Any]:
    outcomes = [value for each in compared for value in each.outcomes]
    table = [
        measured.by_prompt(each.outcomes) for measured, each in zip(mine, compared, strict=True)
    ]
    counts = tally(outcomes)
    del counts["win_rate"]
    result = {"interval": _json(table_interval(table)), **counts}
    orders = [order for each in compared for order in each.orders]
    return {**result, "position": position_bias(orders)}


def _kl(mine: Sequence[Measured]) -> dict[str, Any]:
    """Return KL in nats, per sequence and per token, by both estimators."""
    tokens = _per_prompt(mine, lambda measured: [float(len(ids)) for ids in measured.log_p])
    result = {}
    for name, estimate in (("k1", k1), ("k3", k3)):
        sums = _per_prompt(
            mine,
            lambda measured, estimate=estimate: [  # type: ignore[misc]
                float(estimate(p, q).sum())
                for p, q in zip(measured.log_p, measured.log_q, strict=True)
            ],
        )
        result[name] = {
            "per_sequence": _json(table_interval(sums)),
            "per_token": _json(ratio_interval(sums, tokens)),
        }
    return result


def _per_prompt(
    mine: Sequence[Measured], values: Callable[[Measured], Sequence[Score]]
) -> list[list[Score]]:
    return [measured.by_prompt(values(measured)) for measured in mine]


def _reward_per_nat(
    mine: Sequence[Measured], reference: Sequence[Measured], kl: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the reward gained over the reference for each nat of KL per sequence.

    None where the KL is not shown to be above 0: a ratio to it would be noise.
    """
    per_sequence = kl["k1"]["per_sequence"]
    if TOTAL not in mine[0].metrics or per_sequence is None or per_sequence["low"] <= 0:
        return None
    gained = _difference(mine, reference, TOTAL)
    nats = _per_prompt(
        mine,
        lambda measured: [
            float(k1(p, q).sum()) for p, q in zip(measured.log_p, measured.log_q, strict=True)
        ],
    )
    return _json(ratio_interval(gained, nats))


def _json(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else dict(interval.as_json())
