"""Changes that save memory, and the largest batch and length that fit."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hf_rlhf.models.lengths import positions
from hf_rlhf.runs.known_models import changed
from hf_rlhf.runs.memory import MemoryNeed, memory_need
from hf_rlhf.runs.run import Run
from hf_rlhf.runs.sharded_memory import Plan, Strategy, parts_on_device

Fits = Callable[[Plan], bool]
MOST = 2**18
"""Tokens of the largest pass that is tried: the count of TRL's head loops over its tiles."""
_STEP = 1.1
"""Ratio of neighbours among the sizes that are tried."""


@dataclass(frozen=True)
class Change:
    """A change of a run, with its cost and the plan of the changed run."""

    what: str
    cost: str
    plan: Plan


def plan_of(run: Run, strategy: Strategy, devices: int, **given: int) -> Plan:
    """Return the plan of a strategy, with other rows or tokens of a pass."""
    need = memory_need(run, sharded=not strategy.is_plain, **given)
    return Plan(strategy, devices, parts_on_device(need, strategy, devices))


def changes(run: Run, strategy: Strategy, devices: int, need: MemoryNeed) -> Iterator[Change]:
    """Yield the changes that are possible for this run, each applied alone."""
    for what, cost, settings in _settings(run, need):
        yield Change(what, cost, plan_of(changed(run, **settings), strategy, devices))
    if not strategy.is_plain and "rollout" not in {phase.name for phase in need.phases}:
        parts = parts_on_device(need, strategy, devices, offload=True)
        cost = "each step waits for copies between host and device"
        yield Change("offload of what is sharded to the host", cost, Plan(strategy, devices, parts))


def _settings(run: Run, need: MemoryNeed) -> Iterator[tuple[str, str, dict[str, Any]]]:
    training, lora = run.training, run.model.use_peft
    if not need.given.checkpointing:
        cost = "about a third more time"
        yield "activation_checkpointing: true", cost, {"activation_checkpointing": True}
    rows = training.per_device_train_batch_size
    if rows > 1:
        settings: dict[str, Any] = {"per_device_train_batch_size": rows // 2}
        factors = [name for name in _FACTORS if getattr(training, name, None)]
        settings |= {name: 2 * getattr(training, name) for name in factors}
        what = f"per_device_train_batch_size: {rows // 2}, twice the accumulation"
        yield what, "the same step in more passes", settings
    for name in ("max_new_tokens", "max_completion_length", "max_length"):
        if most := getattr(training, name, None):
            short = min(most, need.given.tokens) // 2
            yield f"{name}: {short}", "longer rows are cut", {name: short}
            break
    if not lora:
        settings = {"use_peft": True, "lora_r": 16, "lora_target_modules": "all-linear"}
        yield "use_peft: true, r 16", "trains about 1% of the parameters", settings
        yield "optim: adamw_8bit", "moments in 8 bits; needs bitsandbytes", {"optim": "adamw_8bit"}
        yield (
            "optim: adafactor",
            "another optimizer, of row and column means",
            {"optim": "adafactor"},
        )
    elif not (run.model.load_in_4bit or run.model.load_in_8bit):
        cost = "the base is rounded to 4 bits; slower; needs bitsandbytes"
        yield "load_in_4bit: true", cost, {"load_in_4bit": True}
    if "reference" in need.held and hasattr(training, "precompute_ref_log_probs"):
        cost = "a pass over the data before the first step"
        chosen = getattr(training, "reference", None)
        change = {"precompute_ref_log_probs": True, **({"reference": None} if chosen else {})}
        yield "reference: precomputed" if chosen else "precompute_ref_log_probs: true", cost, change
    if getattr(training, "share_prompt", None) is False:
        yield "share_prompt: null", "none where it is exact", {"share_prompt": None}


_FACTORS = ("gradient_accumulation_steps", "steps_per_generation")


def largest(run: Run, strategy: Strategy, devices: int, limit: float, **fixed: int) -> int:
    """Return the largest `rows`, or `tokens` where `fixed` has rows, of a pass; 0 if none fits.

    Each device holds at most `limit` bytes. No pass of more than 262,144 tokens is tried, and no
    row of more than the model's positions.
    """
    name = "tokens" if "rows" in fixed else "rows"
    most = max(MOST // next(iter(fixed.values())), 1)
    if name == "tokens":
        most = min(most, positions(run) or most)

    steps = math.ceil(math.log(most, _STEP)) + 1
    grid = sorted({round(most / _STEP**step) for step in range(steps)})
    fitting = bisect_right(
        grid, limit, key=lambda size: plan_of(run, strategy, devices, **fixed, **{name: size}).bytes
    )
    return grid[fitting - 1] if fitting else 0


def least_devices(plans: Callable[[int], list[Plan]], fits: Fits) -> Plan | None:
    """Return the fitting plan with the fewest devices, up to 1,024; None if no plan fits."""
    for devices in (2**power for power in range(11)):
        if fitting := [plan for plan in plans(devices) if fits(plan)]:
            return min(fitting, key=lambda plan: plan.bytes)
    return None
