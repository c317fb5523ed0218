"""From completions, scores and log-probabilities to the numbers of the table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hf_rlhf.rewards import TOTAL
from hf_rlhf_classic.evaluation import intervals
from hf_rlhf_classic.evaluation.compare import Compared, position_bias
from hf_rlhf_classic.evaluation.estimators import k1, k3, tally

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

    def by_prompt(self, values: Sequence[Score]) -> list[Score]:
        """Return the mean of each prompt's completions; None where none has a value."""
        found: list[Score] = []
        for start in range(0, len(values), self.per_prompt):
            known = [one for one in values[start : start + self.per_prompt] if one is not None]
            found.append(sum(known) / len(known) if known else None)
        return found


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
    found: dict[str, Any] = {
        "checkpoints": len(row.mine),
        "metrics": _metrics(row.mine),
        "reward_std": _spread(row.mine),
        "difference": None,
        "win_rate": None,
        "kl": None,
        "reward_per_nat": None,
    }
    if row.baseline is not None:
        found["difference"] = {
            name: _json(intervals.mean(_difference(row.mine, row.baseline, name)))
            for name in found["metrics"]
        }
        found["win_rate"] = {
            name: _win_rate(row.mine, compared) for name, compared in row.compared.items()
        }
    if row.reference is not None:
        found["kl"] = _kl(row.mine)
        found["reward_per_nat"] = _reward_per_nat(row.mine, row.reference, found["kl"])
    return found


def _metrics(mine: Sequence[Measured]) -> dict[str, Any]:
    names = list(mine[0].metrics)
    return {
        name: _json(intervals.mean([one.by_prompt(one.metrics[name]) for one in mine]))
        for name in names
    }


def _spread(mine: Sequence[Measured]) -> dict[str, float] | None:
    """Return the standard deviation of the total over completions, and over prompts' means.

    Each is of one checkpoint (ddof 0), averaged over the checkpoints.
    """
    spreads: dict[str, list[float]] = {"completions": [], "prompts": []}
    for one in mine:
        totals = one.metrics.get(TOTAL) or []
        for name, values in (("completions", totals), ("prompts", one.by_prompt(totals))):
            if known := [value for value in values if value is not None]:
                spreads[name].append(float(np.std(known)))
    if not spreads["completions"]:
        return None
    return {name: sum(values) / len(values) for name, values in spreads.items()}


def _difference(
    mine: Sequence[Measured], others: Sequence[Measured], name: str
) -> list[list[Score]]:
    table = []
    for one, other in zip(mine, others, strict=True):
        pairs = zip(
            one.by_prompt(one.metrics[name]), other.by_prompt(other.metrics[name]), strict=True
        )
        table.append([None if a is None or b is None else a - b for a, b in pairs])
    return table


def _win_rate(mine: Sequence[Measured], compared: Sequence[Compared]) -> dict[str, Any]:
    outcomes = [one for each in compared for one in each.outcomes]
    table = [one.by_prompt(each.outcomes) for one, each in zip(mine, compared, strict=True)]
    counts = tally(outcomes)
    del counts["win_rate"]
    found = {"interval": _json(intervals.mean(table)), **counts}
    orders = [one for each in compared for one in each.orders]
    return {**found, "position": position_bias(orders)}


def _kl(mine: Sequence[Measured]) -> dict[str, Any]:
    """Return KL in nats, per sequence and per token, by both estimators."""
    tokens = _per_prompt(mine, lambda one: [float(len(ids)) for ids in one.log_p])
    found = {}
    for name, estimate in (("k1", k1), ("k3", k3)):
        sums = _per_prompt(
            mine,
            lambda one, estimate=estimate: [  # type: ignore[misc]
                float(estimate(p, q).sum()) for p, q in zip(one.log_p, one.log_q, strict=True)
            ],
        )
        found[name] = {
            "per_sequence": _json(intervals.mean(sums)),
            "per_token": _json(intervals.ratio(sums, tokens)),
        }
    return found


def _per_prompt(
    mine: Sequence[Measured], values: Callable[[Measured], Sequence[Score]]
) -> list[list[Score]]:
    return [one.by_prompt(values(one)) for one in mine]


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
        lambda one: [float(k1(p, q).sum()) for p, q in zip(one.log_p, one.log_q, strict=True)],
    )
    return _json(intervals.ratio(gained, nats))


def _json(interval: Any) -> dict[str, Any] | None:
    return None if interval is None else dict(interval.as_json())
