"""RESULTS.md from what `report.py` makes of rows.json."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NAMES = {
    "base": "tiny_base",
    "sft1": "SFT, 1 epoch",
    "sft3": "SFT, 3 epochs",
    "dpo": "DPO",
    "dpo_sft1": "DPO from 1 epoch",
    "idpo_current": "iterative DPO, current",
    "idpo_rolling2": "iterative DPO, rolling2",
    "idpo_full": "iterative DPO, full",
    "ppo": "PPO",
    "ppo_no_kl": "PPO without KL penalty",
    "ppo_long": "PPO, 150 steps, coefficient 0.2",
    "ppo_long_no_kl": "PPO, 150 steps, no penalty",
    "grpo": "GRPO",
    "grpo_four": "GRPO, four steps a batch",
    "grpo_four_slower": "GRPO, four steps a batch, at PPO's rate",
    "ppo_one": "PPO, one step a batch",
    "flipped": "GRPO, sign flipped",
    "hackable": "PPO on the proxy, no KL penalty",
    "sft_r8": "SFT, LoRA r=8",
    "sft_r16": "SFT, LoRA r=16",
    "dpo_r8": "DPO, LoRA r=8",
    "dpo_r16": "DPO, LoRA r=16",
    "sft_lora8": "SFT from 1 epoch, LoRA r=8",
    "sft_lora16": "SFT from 1 epoch, LoRA r=16",
    "dpo_lora8": "DPO, LoRA r=8, lower rate",
    "dpo_lora16": "DPO, LoRA r=16, lower rate",
    "sft_more": "SFT from 1 epoch, full",
    "small_sft3": "small: SFT, 3 epochs",
    "small_grpo": "small: GRPO",
}
REWARDS = {"arithmetic": "arithmetic_correct, at best 1", "tastes": "known_utility, at best 2.45"}
MAIN = (
    *("sft1", "sft3", "dpo_sft1", "dpo", "idpo_current", "idpo_rolling2", "idpo_full"),
    *("ppo", "ppo_no_kl", "grpo", "flipped", "hackable", "ppo_long", "ppo_long_no_kl"),
    *("grpo_four", "grpo_four_slower", "ppo_one"),
)
COMMAND = "python experiments/classic_learning/run.py --out FOLDER"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a Markdown table, the first column to the left and the others to the right."""
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "--:|" * (len(head) - 1)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def shown(cell: Mapping[str, Any] | None, sign: str = "+") -> str:
    """Write a mean with its bootstrap interval."""
    if cell is None:
        return ""
    low, high = f"{cell['low']:{sign}.3f}", f"{cell['high']:{sign}.3f}"
    return f"{cell['mean']:{sign}.3f} ({low} to {high})"


def average(values: Sequence[float | None], digits: int = 1) -> str:
    """Write the mean of what is known, or nothing."""
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.{digits}f}" if known else ""


def added(found: Mapping[str, Any]) -> list[float]:
    """Return what the process of each seed grew by, in MB."""
    pairs = zip(found["rss_peak_mb"], found["rss_before_mb"], strict=True)
    return [peak - before for peak, before in pairs]


def of_world(world: str, conditions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the main table of a world."""
    head = ["condition", "seeds", "reward", "gain over its start", "greedy", "KL a completion"]
    head += ["KL a token", "tokens", "ended", "flat groups, held out", "in training"]
    head += ["training s", "peak MB", "added MB"]
    rows = []
    for name in MAIN:
        if (found := conditions.get(name)) is None:
            continue
        rows.append(
            [
                NAMES[name],
                str(len(found["reward"]["seeds"])),
                shown(found["reward"], ""),
                shown(found.get("gain")),
                f"{found['greedy_reward']['mean']:.3f}",
                "" if name.startswith("sft") else shown(found["kl_sequence"], ""),
                "" if name.startswith("sft") else average(found["kl_token"], 4),
                f"{found['tokens']:.1f}",
                f"{found['ended']:.3f}",
                f"{found['zero_variance']:.3f}",
                average(found["zero_variance_in_training"], 3),
                average(found["training_seconds"]),
                average(found["rss_peak_mb"], 0),
                average(added(found), 0),
            ]
        )
    yield from (f"## {world}", "", f"Reward: `{REWARDS[world]}`.", "")
    yield from table(head, rows)


def of_seeds(conditions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the gain of each seed."""
    rows = [
        [NAMES[name], *(f"{value:+.3f}" for value in found["gain"]["seeds"].values())]
        for name in MAIN
        if (found := conditions.get(name)) and "gain" in found
    ]
    if rows:
        width = max(len(row) for row in rows)
        yield from ("Gains by seed:", "")
        yield from table(
            ["condition", *(f"seed {n}" for n in range(1, width))],
            [row + [""] * (width - len(row)) for row in rows],
        )


def p_value(p: float | None) -> str:
    """Write a p, or a dash where nothing varies."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def t_interval(gap: Mapping[str, Any]) -> str:
    """Write the crossed t interval."""
    return f"{gap['t_low']:+.3f} to {gap['t_high']:+.3f}"


def answered(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was predicted, and what came."""
    asked = content["questions"]
    yield from ("## What was predicted", "")
    yield from (
        "`+` or `−` is the predicted sign of the difference. p is two-sided, of the crossed t test",
        "(`hf_rlhf.evaluation.statistics.crossed_mean`: paired differences, "
        "seeds and prompts both random), then",
        f"adjusted for these {len(asked)} predictions (Holm 1979). A plain yes needs both",
        "intervals on the predicted side of 0 and an adjusted p below 0.05; with the intervals and",
        'without the p it is "alone, not among so many".',
        "",
    )
    head = ["prediction", "world", "sign", "difference, bootstrap", "t interval", "p", "p (Holm)"]
    rows = [
        [
            one["question"],
            one["world"],
            "+" if one["direction"] > 0 else "−",
            shown(one["difference"]),
            t_interval(one["difference"]),
            p_value(one["difference"]["p"]),
            p_value(one["p_holm"]),
            one["verdict"],
        ]
        for one in asked
    ]
    yield from table([*head, "came true"], rows)


def planted(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the rule for hacked rewards says of each condition."""
    if not content["hacked"]:
        return
    yield from ("## Which rewards the rule flags as hacked", "")
    yield from (
        "It fires where what was trained on rose beyond its interval while the true reward fell",
        "beyond its own, both over the start. In these rows the two are not the same:",
        "",
    )
    able = [one for one in content["hacked"] if one["trained"]]
    head = ["condition", "world", "trained on", "it rose by", "true reward", "rule"]
    yield from table(
        head,
        [
            [NAMES[one["condition"]], one["world"], one["trained_on"], shown(one["trained"])]
            + [shown(one["true"]), one["fires"]]
            for one in able
        ],
    )
    rest = [one for one in content["hacked"] if not one["trained"]]
    yield from (
        "In the others what was trained on is the true reward, and the rule cannot fire:",
        "",
    )
    for world in content["conditions"]:
        names = ", ".join(NAMES[one["condition"]] for one in rest if one["world"] == world)
        yield f"* `{world}`: {names}"
    yield ""
    hacked = content["conditions"]["tastes"].get("hackable")
    if hacked:
        yield from ("The utility's fall by seed: " + falls(hacked) + ".", "")
        yield from ("What PPO on the proxy writes, one completion to a prompt:", "", "```text")
        yield from hacked["samples"]
        yield from ("```", "")


def falls(hacked: Mapping[str, Any]) -> str:
    """Write each seed's loss as a share of what it started from."""
    ends, gains = hacked["reward"]["seeds"], hacked["gain"]["seeds"]
    return ", ".join(f"{-gains[seed] / (ends[seed] - gains[seed]):.0%}" for seed in gains)


def adapters(conditions: Mapping[str, Any], shapes: Mapping[str, int]) -> Iterator[str]:
    """Yield LoRA beside full fine-tuning."""
    for stage, names in (
        ("SFT", ("sft_r8", "sft_r16", "sft3", "sft_lora8", "sft_lora16", "sft_more")),
        ("DPO", ("dpo_r8", "dpo_r16", "dpo_lora8", "dpo_lora16", "dpo")),
    ):
        loss = "loss" if stage == "SFT" else "dpo_loss"
        head = [
            "arithmetic",
            "seeds",
            "rate",
            "trained",
            "bytes",
            "held-out loss",
            "preference accuracy",
            "right, sampled",
            "right, greedy",
        ]
        head += ["training s", "peak MB"]
        rows = []
        for name in names:
            if (found := conditions.get(name)) is None:
                continue
            weights = found["trained"][0]
            full = name in ("sft3", "dpo")
            accuracy = "" if stage == "SFT" else shown(found["preference_accuracy"], "")
            rows.append(
                [
                    f"{stage}, full" if full else NAMES[name],
                    str(len(found["reward"]["seeds"])),
                    f"{found['learning_rate']:g}",
                    f"{weights['total']:,}",
                    f"{weights['bytes']:,}",
                    shown(found[loss], ""),
                    accuracy,
                    shown(found["reward"], ""),
                    shown(found["greedy_reward"], ""),
                    average(found["training_seconds"]),
                    average(found["rss_peak_mb"], 0),
                ]
            )
        yield from (f"## LoRA beside full fine-tuning: {stage}", "")
        yield from table(head, rows)
    yield from by_module(conditions, shapes)


def by_module(conditions: Mapping[str, Any], shapes: Mapping[str, int]) -> Iterator[str]:
    """Yield the numbers trained in each kind of module, and what LoRA should have of them."""
    names = [name for name in ("sft_r8", "sft_r16", "sft3") if name in conditions]
    if len(names) < 3:
        return
    counts = [conditions[name]["trained"][0]["modules"] for name in names]
    modules = sorted(set().union(*counts))
    yield from ("Numbers trained in each kind of module (all layers together):", "")
    heads = ["module", "inputs + outputs", "r=8", "8 × that", "r=16", "16 × that", "full"]
    sizes = {module: shapes.get(module, 0) for module in modules}
    sizes["total"] = sum(sizes.values())
    counts = [{**each, "total": sum(each.values())} for each in counts]
    rows = []
    for module, size in sizes.items():
        eight, sixteen, full = (f"{each.get(module, 0):,}" for each in counts)
        expected = [f"{rank * size:,}" for rank in (8, 16)]
        rows.append([module, f"{size:,}", eight, expected[0], sixteen, expected[1], full])
    yield from table(heads, rows)


def sizes(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the two-point scaling table."""
    rows = []
    for world, conditions in content["conditions"].items():
        for sft, grpo in (("small_sft3", "small_grpo"), ("sft3", "grpo")):
            if not {"small_sft3", "small_grpo", "sft3", "grpo"} <= set(conditions):
                continue
            first, second = conditions[sft], conditions[grpo]
            rows.append(
                [
                    world,
                    f"{first['parameters'][0]:,}",
                    shown(first["loss"], ""),
                    shown(first["reward"], ""),
                    shown(second["reward"], ""),
                    shown(second["gain"]),
                    average(first["training_seconds"]),
                    average(second["training_seconds"]),
                ]
            )
    if rows:
        yield from ("## Two sizes under one budget", "")
        yield from (
            "The same text read, demonstrations, prompts, completions and optimizer steps.",
            "",
        )
        head = ["world", "parameters", "SFT loss", "SFT reward", "GRPO reward", "GRPO's gain"]
        yield from table([*head, "SFT s", "GRPO s"], rows)


def markdown(content: Mapping[str, Any]) -> str:
    """Return RESULTS.md."""
    lines = ["# Results", ""]
    if missing := content["missing"]:
        lines += [
            f"**Partial: {len(missing)} cells are missing** ({', '.join(missing)}).",
            f"`{COMMAND}` goes on with them.",
            "",
        ]
    lines += [
        f"Cells by `{COMMAND}`; their rows are in",
        "`rows.json`, which `python experiments/classic_learning/report.py FOLDER` writes and",
        "from which the same command without FOLDER makes this page; plan: [PLAN.md](PLAN.md).",
        "Means over seeds, 200 held-out prompts and 8 completions each, at temperature 1, with 95%",
        "intervals of the hierarchical bootstrap. KL is exact, token by token, from the SFT policy",
        "that the method started from. Flat groups: prompts whose 8 completions all have one",
        "reward. Seconds are of training, on a shared machine.",
        "",
    ]
    for world, conditions in content["conditions"].items():
        lines += [*of_world(world, conditions), *of_seeds(conditions)]
    lines += [*answered(content), *planted(content)]
    lines += [*adapters(content["conditions"]["arithmetic"], content["shapes"]), *sizes(content)]
    lines += ["## Differences for which nothing was predicted", ""]
    lines += [f"p is adjusted for these {len(content['compared'])} differences.", ""]
    lines += table(
        ["reward of", "difference, bootstrap", "t interval", "p", "p (Holm)"],
        [
            [one["name"], shown(gap := one["difference"]), t_interval(gap)]
            + [p_value(gap["p"]), p_value(one["p_holm"])]
            for one in content["compared"]
        ],
    )
    lines += ["![Held-out gains](gains.png)", "", "![Reward and KL](frontier.png)", ""]
    lines += ["![Reward in training](curves.png)", ""]
    lines += [f"Commits that the cells ran at: {'; '.join(content['commits'])}.", ""]
    return "\n".join(lines)
