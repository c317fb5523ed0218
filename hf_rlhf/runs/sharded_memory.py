"""The memory of each device of a sharded run, by arithmetic on the count for a single device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import psutil

from hf_rlhf.models.loading import skeleton
from hf_rlhf.runs.measured_memory import Correction
from hf_rlhf.runs.memory import MemoryNeed, Phase, memory_need
from hf_rlhf.runs.preflight_launch import sharding
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.disk import human

SMALL = 8_000_000
"""Models of fewer parameters are not counted: the count could take longer than the run."""
_BUCKET = 5e8
"""Parameters that DeepSpeed reduces at once; ZeRO-3 keeps twice as many gathered."""
_NODE = 8
"""Devices of a node, over which hybrid sharding shards; other nodes hold copies."""


@dataclass(frozen=True)
class Strategy:
    """How a launch divides weights, gradients and the optimizer."""

    name: str
    engine: str
    """MULTI_GPU, DEEPSPEED or FSDP, as accelerate calls it."""
    stage: int = 0
    """Of ZeRO; for FSDP 3 if weights are sharded again after the forward pass, otherwise 2."""
    in_node: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether every device holds everything."""
        return self.engine == "MULTI_GPU"

    def shards(self, devices: int) -> int | None:
        """Return over how many of `devices` the state is sharded; None if it cannot be."""
        if self.is_plain:
            return 1
        if self.in_node:
            return _NODE if devices > _NODE and devices % _NODE == 0 else None
        return devices if devices > 1 else None


STRATEGIES = (
    Strategy("DDP", "MULTI_GPU"),
    Strategy("ZeRO-1", "DEEPSPEED", 1),
    Strategy("ZeRO-2", "DEEPSPEED", 2),
    Strategy("ZeRO-3", "DEEPSPEED", 3),
    Strategy("FSDP2 grad/op", "FSDP", 2),
    Strategy("FSDP2", "FSDP", 3),
    Strategy("FSDP2 hybrid", "FSDP", 3, in_node=True),
)


ERROR = 0.15
"""The relative error of a count; a need that is closer to the device's memory is "too close"."""


@dataclass(frozen=True)
class Plan:
    """The bytes on each device under a strategy."""

    strategy: Strategy
    devices: int
    parts: Mapping[str, int]
    correction: Correction | None = None

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())

    def verdict(self, room: float) -> str:
        """Return whether it fits in a device's memory, as far as a count can tell."""
        error = self._error
        if self.bytes * (1 + error) <= room:
            return "fits"
        if self.bytes * (1 - error) > room:
            return "does not fit"
        return f"too close: a count may be wrong by {error:.0%}"

    @property
    def _error(self) -> float:
        return max(ERROR, self.correction.error if self.correction else 0)

    def surely_below(self, room: float) -> float:
        """Return the largest count, before correction, that surely fits."""
        return room / (1 + self._error) / (self.correction.factor if self.correction else 1)

    def corrected(self, correction: Correction | None) -> "Plan":
        """Return the plan corrected by the peaks of earlier runs."""
        factor = correction.factor if correction is not None else 1
        parts = {name: int(size * factor) for name, size in self.parts.items()}
        return replace(self, parts=parts, correction=correction)

    def __str__(self) -> str:
        """Return the sum of the parts, and the parts."""
        name = f"with {self.strategy.name} over {self.devices}" if self.devices > 1 else ""
        parts = ", ".join(f"{part} {human(size)}" for part, size in self.parts.items())
        return " ".join(filter(None, (human(self.bytes), "per GPU", name, f"({parts})")))


def memory_plans(run: Run, devices: int) -> list[Plan]:
    """Return the plan of each strategy that can use that many devices.

    Raises ValueError for a model of an unknown kind.
    """
    return Needs(run).plans(devices)


class Needs:
    """The memory of a run, unsharded and computed as when sharded; each counted once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.plain = memory_need(run)

    @cached_property
    def sharded(self) -> MemoryNeed:
        """The need of a device that computes as DeepSpeed and FSDP do."""
        given = self.plain.given
        same = given.autocast is None and given.packed is None
        return self.plain if same else memory_need(self.run, sharded=True)

    def of(self, strategy: Strategy) -> MemoryNeed:
        """Return the need that a strategy divides among devices."""
        return self.plain if strategy.is_plain else self.sharded

    def plans(self, devices: int) -> list[Plan]:
        """Return the plan of each strategy that can use that many devices."""
        return [
            Plan(strategy, devices, parts_on_device(self.of(strategy), strategy, devices))
            for strategy in STRATEGIES
            if strategy.shards(devices) is not None
        ]


def parts_on_device(
    need: MemoryNeed, strategy: Strategy, devices: int, *, offload: bool = False
) -> dict[str, int]:
    """Return the bytes on each device at the peak, by component.

    `need` is for a device that computes as the strategy does (`memory_need(run, sharded=...)`).
    With `offload` the sharded state is in the host's memory, but the gathered parts are not.
    """
    every = [_in_phase(need, phase, strategy, devices, offload) for phase in need.phases]
    return max(every, key=lambda parts: sum(parts.values()))


def _in_phase(
    need: MemoryNeed, phase: Phase, strategy: Strategy, devices: int, offload: bool
) -> dict[str, int]:
    parts: Mapping[str, float]
    if phase.alone:
        parts = {"weights": need.alone, phase.name: phase.working}
    elif strategy.is_plain:
        buckets = {"DDP's buckets": need.gradients} if devices > 1 else {}
        parts = {**need.parts(phase), **buckets}
    else:
        share = strategy.shards(devices) or 1
        zero = strategy.engine == "DEEPSPEED"
        parts = (_deepspeed if zero else _fsdp)(need, phase, strategy.stage, share, offload)
    return {name: int(size) for name, size in parts.items() if size >= 1}


def _deepspeed(
    need: MemoryNeed, phase: Phase, stage: int, share: int, offload: bool
) -> dict[str, float]:
    """Weights and gradients in the dtype of the computation, a copy and the moments in float32.

    Rajbhandari et al. 2020 (ZeRO); sizes of gathered parts are the defaults of DeepSpeed 0.19.
    """
    kept = share if stage == 3 else 1
    numbers = need.trained
    stepping = phase.name == "optimizer step"
    parts: dict[str, float] = {"weights": need.weights / kept}
    parts |= {role: size / kept for role, size in need.held.items()}
    parts["optimizer with float32 weights"] = (
        0 if offload else (4 * numbers + need.wide_optimizer + 4 * numbers * stepping) / share
    )
    parts["gradients"] = need.gradients / (share if stage > 1 else 1)
    parts["buckets"] = min(_BUCKET, numbers) * need.width
    if stage == 3:
        whole = phase.name == "rollout"
        parts["gathered weights"] = (
            need.weights if whole else min(need.weights, 2 * _BUCKET * need.width)
        )
    parts[phase.name] = phase.working / (share if stepping else 1)
    return parts


def _fsdp(
    need: MemoryNeed, phase: Phase, stage: int, share: int, offload: bool
) -> dict[str, float]:
    """Trained weights, gradients and moments in float32, all sharded; blocks gathered in turn."""
    numbers, stepping = need.trained, phase.name == "optimizer step"
    frozen = need.weights - numbers * need.width
    state = 0 if offload else 1
    parts: dict[str, float] = {"weights": state * (4 * numbers + frozen) / share}
    parts |= {role: size / share for role, size in need.held.items()}
    parts["optimizer"] = state * need.wide_optimizer / share
    parts["gradients"] = state * 4 * numbers / share
    if not stepping:
        whole = stage == 2 or phase.name == "rollout"
        parts["gathered weights"] = need.weights if whole else need.root + 2 * need.block
        if phase.gradients or "backward" in phase.name:
            parts["gathered gradients"] = (
                (need.root + need.block) * numbers * need.width / max(need.weights, 1)
            )
    parts[phase.name] = phase.working / (share if stepping else 1)
    return parts


def counted_peak(run: Any) -> dict[str, int | None]:
    """Return `predicted`, the counted bytes of a process, and `before`, its current bytes.

    Empty for a small model, and for a launch that shards. `predicted` is None for a model that
    cannot be counted. On several processes each returns its own.
    """
    if run.phase_list or sharding(run):
        return {}
    before = psutil.Process().memory_info().rss
    try:
        if sum(each.numel() for each in skeleton(run).parameters()) < SMALL:
            return {}
        plain = parts_on_device(memory_need(run), STRATEGIES[0], run.training.world_size)
        return {"predicted": sum(plain.values()), "before": before}
    except Exception:  # noqa: BLE001 - the code of any model, and no reason not to train it
        return {"predicted": None, "before": before}
