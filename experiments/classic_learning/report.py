"""Turn the cells of `run.py` into results.json, RESULTS.md and pictures: `report.py FOLDER`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from grid import METHODS, SEEDS, WORLDS, Cell, cells
from numpy.typing import NDArray
from pictures import draw
from tables import markdown

from hf_rlhf.files import atomic_write_json, atomic_write_text
from hf_rlhf.stats import crossed_mean
from hf_rlhf_classic.evaluation.intervals import METHOD, mean

HERE = Path(__file__).parent
Table = NDArray[np.float64]
"""Values of a measurement: (seeds, rows)."""


class Results:
    """The finished cells, by world, condition and seed."""

    def __init__(self, out: Path) -> None:
        self.found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self.cells: dict[tuple[str, str], Cell] = {}
        self.missing: list[str] = []
        for cell in cells():
            path = out / cell.name / "measured.json"
            if not path.exists():
                self.missing.append(cell.name)
                continue
            key = (cell.world, cell.condition)
            self.cells[key] = cell
            self.found.setdefault(key, {})[cell.seed] = json.loads(path.read_text())

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

    def scalar(self, world: str, condition: str, take: Callable[[Any], Any]) -> list[Any]:
        """Return something of each seed's cell."""
        return [take(cell) for _, cell in sorted(self.found[world, condition].items())]


def summary(table: Table, seeds: list[int]) -> dict[str, Any]:
    """Return the mean, the hierarchical bootstrap's interval, the t interval, and the seeds'."""
    boot, crossed = mean(table.tolist()), crossed_mean(table)
    assert boot is not None
    by_seed = {str(s): float(v) for s, v in zip(seeds, table.mean(axis=1), strict=True)}
    return {
        **boot.as_json(),
        "t_low": crossed.low,
        "t_high": crossed.high,
        "p": crossed.p,
        "seeds": by_seed,
    }


def start_of(results: Results, world: str, condition: str) -> str:
    """Return the condition that another starts from."""
    return results.cells[world, condition].start


COLUMNS = ("reward", "greedy_reward", "kl_sequence", "tokens", "ended", "zero_variance")
COSTS: dict[str, Callable[[Any], Any]] = {
    "kl_token": lambda cell: cell["kl_token"],
    "training_seconds": lambda cell: cell["training_seconds"],
    "rss_peak_mb": lambda cell: cell["rss_peak_mb"],
    "rss_added_mb": lambda cell: cell["rss_peak_mb"] - cell["rss_before_mb"],
    "zero_variance_in_training": lambda cell: cell["zero_variance_in_training"],
    "steps": lambda cell: cell["steps"],
    "parameters": lambda cell: cell["parameters"],
    "trained": lambda cell: cell["trained"],
}


def condition_of(results: Results, world: str, condition: str) -> dict[str, Any]:
    """Return everything that is said of a condition."""
    first = next(iter(results.found[world, condition].values()))
    metrics = [*COLUMNS, "loss", "preference_accuracy", "dpo_loss"]
    metrics += ["proxy"] if "proxy" in first["rows"] else []
    entry: dict[str, Any] = {m: results.of(world, condition, m) for m in metrics}
    entry |= {name: results.scalar(world, condition, take) for name, take in COSTS.items()}
    entry["samples"] = first["samples"]
    entry["learning_rate"] = first["run"]["learning_rate"]
    start = start_of(results, world, condition)
    if results.has(world, condition, start):
        entry["start"] = start
        entry["gain"] = results.difference(world, condition, start, "reward")
        if "proxy" in first["rows"]:
            entry["proxy_gain"] = results.difference(world, condition, start, "proxy")
    return entry


def verdict(interval: Mapping[str, Any], direction: int = 1) -> str:
    """Return how an interval of a difference stands to a predicted direction."""
    low, high, t_low = interval["low"], interval["high"], interval["t_low"]
    if direction < 0:
        low, high, t_low = -high, -low, -interval["t_high"]
    if low > 0:
        said = "yes" if t_low > 0 else "yes by the bootstrap, not by the t interval"
    else:
        said = "no: the other way" if high < 0 else "not shown"
    count = len(interval["seeds"])
    return said if count == len(SEEDS) else f"{said} (of {count} seeds only)"


def shapes() -> dict[str, int]:
    """Return inputs + outputs of each kind of linear module, summed over the layers."""
    from safetensors import safe_open

    found: dict[str, int] = {}
    path = files("hf_rlhf_classic") / "tiny_base" / "model.safetensors"
    with safe_open(str(path), framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - not a mapping
            if name.endswith("_proj.weight"):
                module = name.split(".")[-2]
                found[module] = found.get(module, 0) + sum(weights.get_slice(name).get_shape())
    return found


Question = tuple[str, str, dict[str, Any], int]
"""What is asked, in which world, the difference that answers it, and the predicted sign."""


def questions(results: Results) -> Iterator[Question]:
    """Yield the plan's predictions with what was measured, those that can be answered."""
    asked = [
        ("H1 PPO beats SFT", "ppo", "sft3", "reward", 1, WORLDS),
        ("H1 GRPO beats SFT", "grpo", "sft3", "reward", 1, WORLDS),
        ("H2 DPO beats SFT", "dpo", "sft3", "reward", 1, WORLDS),
        *(
            (f"H2 iterative DPO ({b}) beats SFT", f"idpo_{b}", "sft3", "reward", 1, WORLDS)
            for b in ("current", "rolling2", "full")
        ),
        ("H3 PPO drifts further without its KL penalty", "ppo_no_kl", "ppo", "kl_sequence", 1)
        + (WORLDS,),
        ("H4 DPO is better from three epochs of SFT than from one", "dpo", "dpo_sft1", "reward", 1)
        + (WORLDS,),
        ("H5 with the sign flipped the reward falls", "flipped", "sft3", "reward", -1)
        + (("arithmetic",),),
        ("H6 the proxy rises when it is trained on", "hackable", "sft3", "proxy", 1)
        + (("tastes",),),
        ("H6 the utility falls meanwhile", "hackable", "sft3", "reward", -1, ("tastes",)),
        ("F1 the same after 150 steps, with 0.2 and without", "ppo_long_no_kl", "ppo_long")
        + ("kl_sequence", 1, WORLDS),
        ("H8 GRPO beats SFT in the small model", "small_grpo", "small_sft3", "reward", 1, WORLDS),
        ("H8 the larger model ends higher", "grpo", "small_grpo", "reward", 1, WORLDS),
    ]
    for text, after, before, metric, direction, worlds in asked:
        for world in worlds:
            if results.has(world, after, before):
                difference = results.difference(world, after, before, metric)
                yield text, world, difference, direction


def compared(results: Results) -> dict[str, Any]:
    """Return the differences for which no direction was predicted."""
    pairs = [("ppo", "grpo"), ("ppo_no_kl", "ppo"), ("grpo", "dpo"), ("idpo_current", "dpo")]
    pairs += [("idpo_rolling2", "idpo_current"), ("idpo_full", "idpo_current")]
    pairs += [("sft3", "sft1"), ("sft_r8", "sft3"), ("sft_r16", "sft3")]
    pairs += [("dpo_r8", "dpo"), ("dpo_r16", "dpo")]
    pairs += [("sft_lora8", "sft_more"), ("sft_lora16", "sft_more")]
    pairs += [("dpo_lora8", "dpo"), ("dpo_lora16", "dpo")]
    return {
        f"{world}: {a} - {b}": results.difference(world, a, b, "reward")
        for world in WORLDS
        for a, b in pairs
        if results.has(world, a, b)
    }


def flagged(results: Results) -> list[dict[str, Any]]:
    """Return, by condition that trained on a proxy or not, whether the rule of the plan fires.

    It fires where the reward that was trained on is above 0 by its interval and the true one
    below 0 by its own.
    """
    found = []
    for condition in ("hackable", *METHODS, "ppo_no_kl"):
        if not results.has("tastes", condition, "sft3"):
            continue
        true = results.difference("tastes", condition, "sft3", "reward")
        own = "proxy" if condition == "hackable" else "reward"
        trained = results.difference("tastes", condition, "sft3", own)
        fires = trained["low"] > 0 and true["high"] < 0
        found.append({"condition": condition, "trained": trained, "true": true, "flagged": fires})
    return found


def commit_of(cell: Mapping[str, Any]) -> str:
    """Return the commit that a cell ran at, and whether anything of the checkout was changed."""
    git = cell["git"] or {}
    return f"{str(git.get('commit'))[:12]}{', changed' if git.get('dirty') else ''}"


def collect(out: Path) -> dict[str, Any]:
    """Return everything that the tables and pictures show."""
    results = Results(out)
    return {
        "method": METHOD,
        "seeds": SEEDS,
        "missing": results.missing,
        "conditions": {
            world: {
                condition: condition_of(results, world, condition)
                for (of, condition) in results.found
                if of == world
            }
            for world in WORLDS
        },
        "questions": [
            {"question": q, "world": w, "difference": d, "direction": s, "verdict": verdict(d, s)}
            for q, w, d, s in questions(results)
        ],
        "compared": compared(results),
        "flagged": flagged(results),
        "shapes": shapes(),
        "commits": sorted(
            {commit_of(cell) for by_seed in results.found.values() for cell in by_seed.values()}
        ),
        "curves": {
            world: {
                condition: {str(s): cell["curve"] for s, cell in sorted(by_seed.items())}
                for (of, condition), by_seed in results.found.items()
                if of == world
            }
            for world in WORLDS
        },
    }


def main() -> int:
    """Write the files beside this one."""
    content = collect(Path(sys.argv[1]))
    atomic_write_json(HERE / "results.json", content)
    atomic_write_text(HERE / "RESULTS.md", markdown(content))
    draw(content, HERE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
