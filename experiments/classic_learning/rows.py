"""rows.json: what the results are made of, each measurement of each held-out prompt."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from grid import Cell, cells
from numpy.typing import NDArray

from hf_rlhf.evaluation import crossed_mean, table_interval
from hf_rlhf.storage.files import atomic_write_text

DECIMALS = 4
"""Of the published values. The tables are made of those, so that anybody gets the same."""
Table = NDArray[np.float64]
"""Values of a measurement: (seeds, rows)."""

COSTS = ("kl_token", "training_seconds", "rss_peak_mb", "rss_before_mb")
COSTS += ("zero_variance_in_training", "steps", "parameters")


def published(out: Path) -> dict[str, Any]:
    """Return what rows.json holds: the finished cells below `out`, by name."""
    return {
        cell.name: published_cell(json.loads(path.read_text()))
        for cell in cells()
        if (path := out / cell.name / "measured.json").exists()
    }


def published_cell(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is published of one cell's measurements."""
    samples = [f"{sample['prompt']}{sample['text']}" for sample in measured["samples"][:4]]
    return {
        "commit": commit_of(measured),
        "learning_rate": measured["run"]["learning_rate"],
        **{name: rounded(measured[name]) for name in COSTS},
        "trained": measured["trained"],
        "curve": [
            [entry["step"], rounded(value)]
            for entry in measured["curve"]
            if (value := reward_in_training(entry)) is not None
        ],
        "samples": samples,
        "rows": {
            name: [rounded(value) for value in values] for name, values in measured["rows"].items()
        },
    }


def rounded(value: float | None) -> float | int | None:
    """Return a number to `DECIMALS`, a whole one without decimals."""
    if value is None:
        return None
    short = round(float(value), DECIMALS)
    return int(short) if short.is_integer() else short


def reward_in_training(entry: Mapping[str, Any]) -> float | None:
    """Return the mean reward of the completions that a logged step trained on, if it has one."""
    names = ("rewards/reward/mean", "reward", "objective/scores")
    return next((entry[name] for name in names if name in entry), None)


def commit_of(measured: Mapping[str, Any]) -> str:
    """Return the commit that a cell ran at, and whether anything of the checkout was changed."""
    git = measured["git"] or {}
    return f"{str(git.get('commit'))[:12]}{', changed' if git.get('dirty') else ''}"


def write_rows(found: Mapping[str, Any], path: Path) -> None:
    """Write rows.json, a line for each cell."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(cell, separators=(',', ':'))}"
        for name, cell in found.items()
    ]
    atomic_write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


class Results:
    """The published cells, by world, condition and seed."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self.cells: dict[tuple[str, str], Cell] = {}
        self.missing: list[str] = []
        for cell in cells():
            if cell.name not in found:
                self.missing.append(cell.name)
                continue
            key = (cell.world, cell.condition)
            self.cells[key] = cell
            self.found.setdefault(key, {})[cell.seed] = found[cell.name]

    def has(self, world: str, *conditions: str) -> bool:
        """Return whether all of these have a seed in common."""
        return bool(self.seeds(world, *conditions))

    def seeds(self, world: str, *conditions: str) -> list[int]:
        """Return the seeds for which all of these are finished."""
        each = [set(self.found.get((world, one), {})) for one in conditions]
        return sorted(set.intersection(*each)) if each else []

    def table(self, world: str, condition: str, metric: str, seeds: list[int]) -> Table:
        """Return a measurement of a condition, (seeds, rows)."""
        found = self.found[world, condition]
        return np.array([found[seed]["rows"][metric] for seed in seeds], dtype=np.float64)

    def of(self, world: str, condition: str, metric: str) -> dict[str, Any]:
        """Return a measurement's mean with its intervals, and each seed's mean."""
        seeds = self.seeds(world, condition)
        return summary(self.table(world, condition, metric, seeds), seeds)

    def difference(self, world: str, after: str, before: str, metric: str) -> dict[str, Any]:
        """Return `after` minus `before`, paired by seed and row."""
        seeds = self.seeds(world, after, before)
        tables = [self.table(world, one, metric, seeds) for one in (after, before)]
        return summary(tables[0] - tables[1], seeds)

    def gains_apart(self, world: str, one: str, other: str, metric: str) -> dict[str, Any]:
        """Return how much more `one` gained over its start than `other` over its own."""
        pairs = [(name, self.cells[world, name].start) for name in (one, other)]
        seeds = self.seeds(world, *(name for pair in pairs for name in pair))
        gains = [
            self.table(world, end, metric, seeds) - self.table(world, start, metric, seeds)
            for end, start in pairs
        ]
        return summary(gains[0] - gains[1], seeds)

    def scalar(self, world: str, condition: str, name: str) -> list[Any]:
        """Return a number of each seed's cell."""
        return [cell[name] for _, cell in sorted(self.found[world, condition].items())]


def summary(table: Table, seeds: list[int]) -> dict[str, Any]:
    """Return the mean, the hierarchical bootstrap's interval, the t interval, and the seeds'."""
    boot, crossed = table_interval(table.tolist()), crossed_mean(table)
    assert boot is not None
    by_seed = {str(s): float(v) for s, v in zip(seeds, table.mean(axis=1), strict=True)}
    return {
        **boot.as_json(),
        "t_low": crossed.low,
        "t_high": crossed.high,
        "p": crossed.p,
        "seeds": by_seed,
    }
