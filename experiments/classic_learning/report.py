"""Make RESULTS.md and its pictures of rows.json: `report.py`, or `report.py FOLDER` of new cells.

FOLDER is where `run.py` left its cells; rows.json is then written anew from them.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from grid import SEEDS, WORLDS
from pictures import draw
from rows import COSTS, Results, published, write_rows
from tables import markdown

from hf_rlhf.evaluation.statistics import holm
from hf_rlhf.storage.files import atomic_write_text

HERE = Path(__file__).parent
ROWS = HERE / "rows.json"
ALPHA = 0.05


MEASURED = ("reward", "greedy_reward", "kl_sequence", "loss", "preference_accuracy", "dpo_loss")
"""What the tables show with an interval; of the others, the mean."""
AVERAGED = ("tokens", "ended", "zero_variance")


def condition_of(results: Results, world: str, condition: str) -> dict[str, Any]:
    """Return everything that the tables show of a condition."""
    first = next(iter(results.found[world, condition].values()))
    entry: dict[str, Any] = {name: results.of(world, condition, name) for name in MEASURED}
    seeds = results.seeds(world, condition)
    for name in AVERAGED:
        entry[name] = float(results.table(world, condition, name, seeds).mean())
    entry |= {name: results.scalar(world, condition, name) for name in (*COSTS, "trained")}
    entry |= {name: first[name] for name in ("samples", "learning_rate")}
    start = results.cells[world, condition].start
    if results.has(world, condition, start):
        entry["gain"] = results.difference(world, condition, start, "reward")
    return entry


def verdict(question: Mapping[str, Any]) -> str:
    """Return how the intervals and the adjusted p of a difference stand to a predicted sign."""
    gap, sign = question["difference"], question["direction"]
    low, high, t_low = gap["low"], gap["high"], gap["t_low"]
    if sign < 0:
        low, high, t_low = -high, -low, -gap["t_high"]
    if low > 0 and t_low > 0:
        alone = question["p_holm"] is None or question["p_holm"] >= ALPHA
        answer = "alone, not among so many" if alone else "yes"
    elif low > 0:
        answer = "by the bootstrap only"
    else:
        answer = "no: the other way" if high < 0 else "not shown"
    count = len(gap["seeds"])
    return answer if count == len(SEEDS) else f"{answer} (of {count} seeds only)"


def adjusted(differences: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return the p of each difference, adjusted for their number; None where nothing varies."""
    known = [gap["p"] for gap in differences if gap["p"] is not None]
    by_holm = iter(holm(known))
    return [None if gap["p"] is None else next(by_holm) for gap in differences]


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


def questions(results: Results) -> list[dict[str, Any]]:
    """Return the plan's predictions with what was measured, those that can be answered."""
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
    found: list[dict[str, Any]] = [
        {
            "question": text,
            "world": world,
            "difference": results.difference(world, after, before, metric),
            "direction": direction,
        }
        for text, after, before, metric, direction, worlds in asked
        for world in worlds
        if results.has(world, after, before)
    ]
    for question, p in zip(found, adjusted([q["difference"] for q in found]), strict=True):
        question["p_holm"] = p
        question["verdict"] = verdict(question)
    return found


def compared(results: Results) -> list[dict[str, Any]]:
    """Return the differences for which no sign was predicted."""
    pairs = [("ppo", "grpo"), ("ppo_no_kl", "ppo"), ("grpo", "dpo"), ("idpo_current", "dpo")]
    pairs += [("idpo_rolling2", "idpo_current"), ("idpo_full", "idpo_current")]
    pairs += [("sft3", "sft1"), ("sft_r8", "sft3"), ("sft_r16", "sft3")]
    pairs += [("dpo_r8", "dpo"), ("dpo_r16", "dpo")]
    pairs += [("sft_lora8", "sft_more"), ("sft_lora16", "sft_more")]
    pairs += [("dpo_lora8", "dpo"), ("dpo_lora16", "dpo")]
    pairs += [("grpo_four", "grpo"), ("ppo", "grpo_four"), ("ppo", "grpo_four_slower")]
    pairs += [("ppo", "ppo_one"), ("ppo_one", "grpo")]
    found: list[dict[str, Any]] = []
    for world in WORLDS:
        for a, b in pairs:
            if results.has(world, a, b):
                gap = results.difference(world, a, b, "reward")
                found.append({"name": f"{world}: {a} - {b}", "difference": gap})
        for method in ("ppo", "grpo"):
            if results.has(world, method, "sft3"):
                gap = results.difference(world, method, "sft3", "greedy_reward")
                found.append({"name": f"{world}, greedy: {method} - sft3", "difference": gap})
        if results.has(world, "dpo", "sft3", "dpo_sft1", "sft1"):
            gap = results.gains_apart(world, "dpo", "dpo_sft1", "reward")
            found.append({"name": f"{world}: gain of dpo - gain of dpo_sft1", "difference": gap})
    for entry, p in zip(found, adjusted([each["difference"] for each in found]), strict=True):
        entry["p_holm"] = p
    return found


PROXIES = {
    "hackable": ("the proxy", "proxy", 1),
    "flipped": ("minus the reward", "reward", -1),
    **{
        f"dpo{suffix}": ("pairs: minus the DPO loss", "dpo_loss", -1)
        for suffix in ("", "_sft1", "_r8", "_r16", "_lora8", "_lora16")
    },
}
"""What was trained on where that is not the true reward: in words, the measurement, its sign."""


def hacked(results: Results) -> Iterator[dict[str, Any]]:
    """Yield what the plan's rule for hacked rewards says of each method's condition.

    It fires where what was trained on rose beyond its interval and the true reward fell beyond
    its own. Where the two are one and the same it cannot fire, whatever happens.
    """
    for (world, condition), cell in results.cells.items():
        if condition.startswith(("sft", "small_sft")) or not results.has(world, cell.start):
            continue
        true = results.difference(world, condition, cell.start, "reward")
        entry = {"world": world, "condition": condition, "true": true}
        if condition not in PROXIES:
            yield {
                **entry,
                "trained_on": "the true reward",
                "trained": None,
                "fires": "cannot fire",
            }
            continue
        trained_on, metric, sign = PROXIES[condition]
        gap = results.difference(world, condition, cell.start, metric)
        trained = gap if sign > 0 else negative(gap)
        yield {**entry, "trained_on": trained_on, "trained": trained, "fires": rule(trained, true)}


def rule(trained: Mapping[str, Any], true: Mapping[str, Any]) -> str:
    """Return whether what was trained on rose while the true reward fell."""
    if not (trained["low"] > 0 and true["high"] < 0):
        return "no"
    both = trained["t_low"] > 0 and true["t_high"] < 0
    return "fires" if both else "fires by the bootstrap only"


def negative(gap: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a difference with its sign turned."""
    ends = {"low": "high", "high": "low", "t_low": "t_high", "t_high": "t_low", "mean": "mean"}
    return {**gap, **{end: -gap[other] for end, other in ends.items()}}


def collect(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the tables and pictures show, from the content of rows.json."""
    results = Results(found)
    return {
        "missing": results.missing,
        "conditions": {
            world: {
                condition: condition_of(results, world, condition)
                for (of, condition) in results.found
                if of == world
            }
            for world in WORLDS
        },
        "questions": questions(results),
        "compared": compared(results),
        "hacked": list(hacked(results)),
        "shapes": shapes(),
        "commits": sorted({cell["commit"] for cell in found.values()}),
        "curves": {
            world: {
                condition: [cell["curve"] for _, cell in sorted(by_seed.items())]
                for (of, condition), by_seed in results.found.items()
                if of == world
            }
            for world in WORLDS
        },
    }


def main() -> int:
    """Write the files beside this one."""
    if len(sys.argv) > 1:
        write_rows(published(Path(sys.argv[1])), ROWS)
    content = collect(json.loads(ROWS.read_text()))
    atomic_write_text(HERE / "RESULTS.md", markdown(content))
    draw(content, HERE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
