"""The pictures of RESULTS.md."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import NAMES

from hf_rlhf.storage.files import atomic_write_bytes

SHOWN = ("dpo", "idpo_current", "idpo_rolling2", "idpo_full", "ppo", "ppo_no_kl", "grpo")
COLOURS = {
    "sft3": "#555555",
    "dpo": "#0072B2",
    "idpo_current": "#56B4E9",
    "idpo_rolling2": "#009E73",
    "idpo_full": "#8DB600",
    "ppo": "#D55E00",
    "ppo_no_kl": "#CC79A7",
    "grpo": "#E69F00",
}
"""Okabe and Ito's, told apart by most eyes."""


def draw(content: Mapping[str, Any], folder: Path) -> None:
    """Write gains.png, frontier.png and curves.png."""
    _save(_gains, content, folder / "gains.png")
    _save(_frontier, content, folder / "frontier.png")
    _save(_curves, content, folder / "curves.png")


def _save(plot: Any, content: Mapping[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
    for axes, world in zip(figure.subplots(1, 2), content["conditions"], strict=True):
        axes.set_title(world, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        plot(axes, content, world)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    atomic_write_bytes(path, buffer.getvalue())


def _gains(axes: Any, content: Mapping[str, Any], world: str) -> None:
    """Each method's gain over SFT, with its interval and the seeds."""
    conditions = content["conditions"][world]
    names = [name for name in SHOWN if "gain" in conditions.get(name, {})][::-1]
    for place, name in enumerate(names):
        gain = conditions[name]["gain"]
        axes.plot([gain["low"], gain["high"]], [place, place], color=COLOURS[name], lw=2)
        axes.plot(gain["mean"], place, "o", color=COLOURS[name])
        seeds = list(gain["seeds"].values())
        axes.plot(seeds, [place + 0.22] * len(seeds), "|", color=COLOURS[name], ms=7)
    axes.axvline(0, color="#999999", lw=0.8)
    axes.set_yticks(range(len(names)), [NAMES[name] for name in names], fontsize=8)
    axes.set_xlabel("held-out gain over SFT (95%; ticks: seeds)", fontsize=8)


def _frontier(axes: Any, content: Mapping[str, Any], world: str) -> None:
    """Held-out reward over KL, a small mark for each seed and a large one for the mean."""
    conditions = content["conditions"][world]
    for name in ("sft3", *SHOWN):
        if name not in conditions:
            continue
        found = conditions[name]
        kl, reward = found["kl_sequence"], found["reward"]
        axes.plot(kl["mean"], reward["mean"], "o", color=COLOURS[name], label=NAMES[name], ms=7)
        seeds = [found["kl_sequence"]["seeds"].values(), found["reward"]["seeds"].values()]
        axes.plot(*(list(one) for one in seeds), "x", color=COLOURS[name], ms=4)
    axes.set_xlabel("KL from SFT, nats a completion", fontsize=8)
    axes.set_ylabel("held-out reward", fontsize=8)
    if world == "tastes":
        axes.legend(frameon=False, fontsize=7)


def _curves(axes: Any, content: Mapping[str, Any], world: str) -> None:
    """The reward of the completions that were trained on, over completions sampled."""
    for name in ("ppo", "ppo_no_kl", "grpo"):
        for place, entries in enumerate(content["curves"][world].get(name, [])):
            points = [(step * 128, value) for step, value in entries]
            label = NAMES[name] if place == 0 else None
            axes.plot(*zip(*points, strict=True), color=COLOURS[name], lw=1, label=label)
    axes.set_xlabel("completions sampled (a line for each seed)", fontsize=8)
    axes.set_ylabel("reward in training", fontsize=8)
    axes.legend(frameon=False, fontsize=7)
