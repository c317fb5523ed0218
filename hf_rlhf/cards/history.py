"""Tables of logged steps: rewards, and the trainer's own metrics."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.storage.record_schema import RewardSection

History = Sequence[Mapping[str, Any]]
"""An entry for each logged step: `step` and metrics."""
MAX_ROWS = 24
_ORDER = (
    *("loss", "held_out", "accura", "margin", "kl", "entropy", "clip", "explained", "value"),
    "grad_norm",
)
"""Words in metric names, in the order of rows."""
_NO_METRIC = frozenset(
    {
        *("step", "epoch", "learning_rate", "num_tokens", "num_input_tokens_seen", "total_flos"),
        *("step_time", "reward", "reward_std", "runtime", "model_preparation_time"),
        *("iteration", "policy"),  # the stage of the entry
    }
)
_EXTREMES = ("min", "max", "terminated")


def reward_history(history: History, reward: RewardSection) -> dict[str, Any]:
    """Return a row for the total and for each reward and gate over the logged steps.

    `first` and `last` are means over the first and the last tenth of the logged steps (1 to 10
    steps); `none` and `flat` are means over all steps.
    """
    rows = []
    window = 1
    for label in dict.fromkeys([TOTAL, *reward.labels()]):
        means = series(history, f"rewards/{label}/mean")
        if not means:
            continue
        window = _window(means)
        rows.append(
            {
                "label": label,
                **_ends(means),
                "std": _mean(series(history, f"rewards/{label}/std")[-window:]),
                "none": _mean(series(history, f"rewards/{label}/none")),
                "flat": _mean(series(history, f"rewards/{label}/zero_std_groups")),
                "passed": _mean(series(history, f"gates/{label}/pass_rate")),
            }
        )
    logged = len(series(history, f"rewards/{TOTAL}/mean"))
    groups = any(row["flat"] is not None for row in rows)
    return {"rows": rows, "window": window, "logged": logged, "groups": groups}


def trainer_history(history: History, reward: RewardSection) -> dict[str, Any]:
    """Return a row for each of the trainer's own metrics: loss, KL, entropy, and so on.

    `first` and `last` are means as in `reward_history`. Reward metrics, counts and rates of the
    machine, and extremes are omitted; `left_out` counts rows beyond MAX_ROWS.
    """
    parts = (*reward.rewards, *reward.gates)
    rewards = {getattr(part, key) for part in parts for key in ("name", "label")}
    names = dict.fromkeys(name for entry in history for name in entry if _is_metric(name, rewards))
    rows = [
        {"name": name, **_ends(values), "logged": len(values)}
        for name in sorted(names, key=_rank)
        if (values := series(history, name))
    ]
    return {"rows": rows[:MAX_ROWS], "left_out": len(rows[MAX_ROWS:])}


def _window(points: Sequence[tuple[int, float]]) -> int:
    return max(1, min(10, len(points) // 10))


def _ends(points: Sequence[tuple[int, float]]) -> dict[str, float | None]:
    window = _window(points)
    return {"first": _mean(points[:window]), "last": _mean(points[-window:])}


def _is_metric(name: str, rewards: Collection[str]) -> bool:
    name = name.removeprefix("eval_")
    parts = name.split("/")
    of_reward = len(parts) > 2 and parts[0] == "rewards"
    of_reward |= len(parts) > 1 and parts[0] in ("gates", *rewards)
    extreme = any(word in _EXTREMES for word in re.split(r"[/_]", name))
    extreme |= name.endswith(("_low", "_high"))  # the ends of an interval
    of_machine = parts[0] == "step_time" or name.endswith("_per_second")
    return not (name in _NO_METRIC or of_reward or extreme or of_machine)


def _rank(name: str) -> int:
    return next((rank for rank, word in enumerate(_ORDER) if word in name), len(_ORDER))


def series(history: Iterable[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return (step, value) where `metric` was logged as a number."""
    return [
        (entry["step"], float(entry[metric]))
        for entry in history
        if isinstance(entry.get(metric), (int, float)) and isinstance(entry.get("step"), int)
    ]


def _mean(points: Sequence[tuple[int, float]]) -> float | None:
    return math.fsum(value for _, value in points) / len(points) if points else None
