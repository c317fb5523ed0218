"""Measure each policy of an iterative DPO run, and build the tables."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.evaluation import Interval
from hf_rlhf.runs import Run
from hf_rlhf_classic.evaluation.estimators import outcome


def fingerprint(model: Any) -> str:
    """Return a checksum of a model's trainable weights."""
    import torch

    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            digest.update(name.encode())
            flat = weight.detach().cpu().contiguous().reshape(-1)
            digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()


def held_out_split(run: Run) -> str:
    """Return the split for measuring each policy."""
    return run.spec.evaluation.split if run.spec.evaluation is not None else "test"


def win_rate(new: Sequence[Score], old: Sequence[Score]) -> Interval | None:
    """Return how often `new` beats `old` on the same prompts; a tie counts half.

    The rewards are of a single completion per prompt and policy, shape (prompts,). The interval is
    a percentile bootstrap over prompts. Prompts without both rewards are left out; None if none
    remain. A policy's expected rate against itself is 0.5.
    """
    return Interval.of_mean([outcome(a, b) for a, b in zip(new, old, strict=True)])


def exact_kl(policy_logits: Any, other_logits: Any) -> Any:
    """Return KL(policy || other) of the next-token distribution, in nats; (..., V) -> (...).

    Its sum over a completion sampled from the policy at temperature 1 estimates the sequence's KL
    without bias. It is never negative and has less variance than the log-ratio of the sampled
    tokens (Amini, Vieira & Cotterell 2025).
    """
    log_p = policy_logits.float().log_softmax(-1)
    log_q = other_logits.float().log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def held_out_entry(
    policy: int, rows: Sequence[Sequence[Mapping[str, Any]]]
) -> dict[str, float | int]:
    """Return a policy's log entry. `rows[k]` are policy k's held-out completions, up to `policy`.

    `metrics` of the first row of a batch are the metrics that rewards logged for the batch.

    `gain` is the paired mean difference in reward to the policy before the iteration;
    `win_rate_start` is against that policy, `win_rate_initial` against the initial policy. KL is
    from the initial policy.
    """
    mine = rows[policy]
    rewards = [row["reward"] for row in mine]
    entry: dict[str, float | int] = {"policy": policy}
    entry |= _logged("held_out/reward", Interval.of_mean(rewards))
    entry["held_out/none"] = rewards.count(None)
    against = {"start": policy - 1, "initial": 0} if policy else {}
    for name, other in against.items():
        wins = win_rate(rewards, [row["reward"] for row in rows[other]])
        entry |= _logged(f"held_out/win_rate_{name}", wins)
    if policy:
        entry |= _logged("held_out/gain", paired_gain(rows[policy - 1], mine))
    entry["held_out/length"] = fmean(row["tokens"] for row in mine)
    entry["held_out/truncated"] = fmean(float(row["truncated"]) for row in mine)
    entry["kl/sequence"] = fmean(row["kl"] for row in mine)
    entry["kl/token"] = sum(row["kl"] for row in mine) / sum(row["tokens"] for row in mine)
    logged: dict[str, list[float]] = {}
    for name, values in (item for row in mine for item in row.get("metrics", {}).items()):
        logged.setdefault(name, []).extend(values)
    return entry | {f"held_out/{name}": fmean(values) for name, values in logged.items()}


def paired_gain(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Interval | None:
    """Return the mean difference in reward of two policies on the same prompts."""
    pairs = [(old["reward"], new["reward"]) for old, new in zip(before, after, strict=True)]
    return Interval.of_mean([None if None in pair else pair[1] - pair[0] for pair in pairs])


def reason_to_stop(history: Sequence[Mapping[str, Any]], policy: int) -> str | None:
    """Return why a policy shows no gain over its predecessor, or None if it does."""
    entries = [entry for entry in history if entry.get("policy") == policy]
    lows = [entry.get("held_out/gain_low") for entry in entries]
    if any(low is not None and low <= 0 for low in lows):
        return "the interval of its gain includes 0"
    if None in lows:
        return "its gain is unknown: no held-out prompt has a reward both before and after it"
    return None


def _logged(name: str, interval: Interval | None) -> dict[str, float]:
    if interval is None:
        return {}
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def policy_summary(entry: Mapping[str, Any], iterations: int) -> str:
    """Return the printed line of a measured policy, from its log entry."""
    name = "initial policy" if not entry["policy"] else f"policy {entry['policy']}/{iterations}"
    text = [f"{name}: held-out reward {entry.get('held_out/reward', float('nan')):.3f}"]
    if "held_out/win_rate_initial" in entry:
        text.append(f"wins {entry['held_out/win_rate_start']:.2f} against its start")
        text.append(f"{entry['held_out/win_rate_initial']:.2f} against the initial policy")
        text.append(f"KL {entry['kl/sequence']:.3f}")
    if "held_out/gain" in entry:
        low, high = entry["held_out/gain_low"], entry["held_out/gain_high"]
        text.append(f"gain {entry['held_out/gain']:+.3f} [{low:+.3f}, {high:+.3f}]")
    return ", ".join(text)


def rollout_entry(
    iteration: int, rows: Sequence[Mapping[str, Any]], zero_std: float
) -> dict[str, float | int]:
    """Return the log entry of an iteration's completions, before training.

    `zero_std` is the share of prompts with equal rewards.
    """
    completions = [completion for row in rows for completion in row["completions"]]
    rewards = [each["reward"] for each in completions if each["reward"] is not None]
    entry: dict[str, float | int] = {"iteration": iteration}
    if rewards:
        mean = fmean(rewards)
        entry["rollouts/reward"] = mean
        entry["rollouts/reward_std"] = math.sqrt(fmean((reward - mean) ** 2 for reward in rewards))
    entry["rollouts/none"] = len(completions) - len(rewards)
    entry["rollouts/zero_std_groups"] = zero_std
    for label in completions[0]["parts"]:
        scores = [v for each in completions if (v := each["parts"][label]) is not None]
        if scores:
            entry[f"rollouts/{label}"] = fmean(scores)
    entry["rollouts/length"] = fmean(len(each["ids"]) for each in completions)
    entry["rollouts/truncated"] = fmean(float(each["truncated"]) for each in completions)
    return entry


_ROLLOUTS = {
    "iteration": "iteration",
    "prompts": "pairs/prompts",
    "pairs": "pairs/new",
    "tied prompts": "pairs/tied",
    "dropped prompts": "pairs/dropped",
    "pairs in the buffer": "pairs/buffer",
    "times each is trained on": "pairs/passes",
    "reward of rollouts": "rollouts/reward",
    "tokens of a completion": "rollouts/length",
}
_HELD_OUT = {
    "iterations done": "policy",
    "reward": "held_out/reward",
    "gain in its iteration": "held_out/gain",
    "wins against its start": "held_out/win_rate_start",
    "wins against the initial policy": "held_out/win_rate_initial",
    "KL per token": "kl/token",
    "KL per sequence": "kl/sequence",
    "tokens of a completion": "held_out/length",
}
"""Column of the card's table -> key of the log entry."""


def tables(history: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the two tables of a run's card, from the log entries above."""
    titled = {
        "Pairs of each iteration": ("iteration", _ROLLOUTS),
        "Held out, after each iteration": ("policy", _HELD_OUT),
    }
    rows = {
        title: [
            {column: _cell(entry, key) for column, key in columns.items()}
            for entry in history
            if kind in entry
        ]
        for title, (kind, columns) in titled.items()
    }
    return {title: entries for title, entries in rows.items() if entries}


def _cell(entry: Mapping[str, Any], name: str) -> Any:
    """Format a value of a log entry, with its interval if available."""
    if f"{name}_low" not in entry:
        return entry.get(name)
    low, high = entry[f"{name}_low"], entry[f"{name}_high"]
    # On a single prompt, or on equal prompts, a bootstrap has no width: no interval.
    return f"{entry[name]:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low < high else "")
