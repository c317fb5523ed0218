"""Replay a finished run's measurements through the monitor's signals and others: see PLAN.md."""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hf_rlhf import load_record
from hf_rlhf.config import MonitorSpec
from hf_rlhf.monitoring import Measurement, assess
from hf_rlhf.storage import atomic_write_json

SPEC = MonitorSpec(gold="utility", every=1, length_z=2.5)
"""As the defaults were when the plan was written."""
DRAWS = 200
Flags = list[bool]


def signal(name: str, measurements: Sequence[Measurement], spec: MonitorSpec = SPEC) -> Flags:
    """Return at which measurements a signal of the monitor is on."""
    return [name in assess(measurements[: n + 1], spec).names for n in range(len(measurements))]


def page_hinkley(values: Sequence[float], delta: float = 0.5, threshold: float = 5.0) -> Flags:
    """Return from where on a series has risen (Page 1954), in units of its warm-up."""
    start = values[: SPEC.warmup]
    spread, total, lowest, flags = stdev(start), 0.0, 0.0, []
    for number, value in enumerate(values):
        total += (value - fmean(start)) / spread - delta if number >= SPEC.warmup else 0.0
        lowest = min(lowest, total)
        flags.append(bool(flags and flags[-1]) or total - lowest > threshold)
    return flags


def with_random_signs(measurements: Sequence[Measurement], rng: random.Random) -> list[Measurement]:
    """Return the measurements with gold rewards as far from their mean, up or down: no trend."""
    gold = [each.gold for each in measurements if each.gold is not None]
    mean = fmean(each.mean for each in gold)
    drawn = [replace(each, mean=mean + (each.mean - mean) * rng.choice((-1, 1))) for each in gold]
    return [replace(each, gold=mean) for each, mean in zip(measurements, drawn, strict=True)]


def detectors(measurements: Sequence[Measurement]) -> dict[str, Callable[[], Flags]]:
    """Return the detectors of the plan, by metric."""
    gold = [each.gold.mean for each in measurements if each.gold is not None]
    length = [each.length.mean for each in measurements if each.length is not None]
    return {
        **{name: lambda name=name: signal(name, measurements) for name in ("gold", "length")},
        "length_t": lambda: signal("length", measurements, replace(SPEC, length_z=4.6)),
        "ph_gold": lambda: page_hinkley([-value for value in gold]),
        "ph_length": lambda: page_hinkley(length),
    }


def main() -> None:
    """Write the file that a study reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    record = load_record(chosen.run)
    monitor = record.training.monitor
    assert monitor is not None
    assert record.evaluation is not None
    measurements = [Measurement.from_json(each) for each in monitor.measurements]
    flags = {name: detect() for name, detect in detectors(measurements).items()}
    rng = random.Random(0)
    control = [signal("gold", with_random_signs(measurements, rng)) for _ in range(DRAWS)]
    gold = [each.gold.mean for each in measurements if each.gold is not None]
    rows: dict[str, list[float]] = {
        name: [float(on) for on in values] for name, values in flags.items()
    }
    rows["gold_random"] = [fmean(draw[at] for draw in control) for at in range(len(measurements))]
    rows["gold_value"] = gold
    rows["trained_value"] = [each.trained.mean for each in measurements if each.trained is not None]
    best = max(range(5, len(gold) + 1), key=lambda end: fmean(gold[end - 5 : end]))
    change = record.evaluation.estimate("difference", "utility")
    values: dict[str, Any] = {
        **{
            f"first {name}": measurements[on.index(True)].step if True in on else 0
            for name, on in flags.items()
        },
        "best gold until": measurements[best - 1].step,
        "held-out gold": change.mean,
        "held-out gold, high": change.high,
        "random signs: share of runs with an alarm": fmean(any(draw) for draw in control),
    }
    after = {name: column[SPEC.warmup :] for name, column in rows.items()}
    atomic_write_json(chosen.out, {"rows": after, "values": values})


if __name__ == "__main__":
    main()
