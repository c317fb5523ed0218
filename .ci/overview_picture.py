"""Draw docs/images/overview.png from the record of the shipped example (model_cards/example)."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
BLUE, GREY, INK = "#0072b2", "#6b7280", "#1f2937"
RUN_FILE = """\
schema: 1
plugin: refiner_grpo
model_name_or_path: YOUR_BASE
dataset: {name: tiny_world}
judges:
  words: {name: lexical}
rewards:
  - name: refiner_reward
    judge: words
  - name: answer_format
    weight: 0
evaluation: {rows: 200}
use_peft: true
publish: {repo_id: YOU/MODEL}"""
RESULT = (
    ("adapter/", "the LoRA weights"),
    ("model.safetensors", "merged, ready to load"),
    ("README.md", "a card of measured numbers"),
    ("run.json", "every setting, version and seed"),
)


def main() -> None:
    """Draw the picture."""
    record = json.loads((ROOT / "model_cards/example/run.json").read_text())
    plt.rcParams.update({"font.size": 10, "text.color": INK, "axes.labelcolor": INK})
    figure = plt.figure(figsize=(13, 4.3), dpi=150)
    grid = figure.add_gridspec(
        1,
        4,
        width_ratios=(1.02, 1.25, 0.6, 1.0),
        wspace=0.32,
        left=0.02,
        right=0.985,
        top=0.8,
        bottom=0.13,
    )
    axes = [figure.add_subplot(cell) for cell in grid]
    titles = ("1  one run file", "2  training", "3  held-out rows", "4  on the Hub, verified")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, loc="left", fontweight="bold", pad=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=GREY)
    text_panel(axes[0], RUN_FILE)
    training(axes[1], record["training"]["history"])
    held_out(axes[2], record["evaluation"])
    result(axes[3])
    figure.suptitle(
        "accelerate launch -m hf_rlhf.train --config run.yaml",
        x=0.02,
        y=0.965,
        ha="left",
        family="monospace",
        fontsize=13,
        color=BLUE,
    )
    figure.savefig(ROOT / "docs/images/overview.png", facecolor="white")


def text_panel(axis: Any, text: str) -> None:
    """Draw text on a grey ground."""
    axis.set_facecolor("#f3f4f6")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    axis.text(0.04, 0.95, text, va="top", family="monospace", fontsize=9.5, linespacing=1.4)


def training(axis: Any, history: list[dict[str, Any]]) -> None:
    """Draw the training reward."""
    rows = [entry for entry in history if "reward" in entry]
    steps, mean = [row["step"] for row in rows], [row["reward"] for row in rows]
    low = [max(row["reward"] - row["reward_std"], 0) for row in rows]
    high = [min(row["reward"] + row["reward_std"], 1) for row in rows]
    axis.fill_between(steps, low, high, color=BLUE, alpha=0.15, linewidth=0)
    axis.plot(steps, mean, color=BLUE, linewidth=2)
    axis.set(xlabel="step", ylim=(0.4, 1.03), xlim=(1, steps[-1]))
    axis.set_ylabel("reward (band: ± 1 std)")


def held_out(axis: Any, evaluation: dict[str, Any]) -> None:
    """Draw the held-out reward before and after."""
    for place, (stage, color) in enumerate((("before", GREY), ("after", BLUE))):
        total = evaluation[stage]["total"]
        error = [[total["mean"] - total["low"]], [total["high"] - total["mean"]]]
        axis.errorbar(
            place, total["mean"], yerr=error, fmt="o", color=color, capsize=5, markersize=8
        )
        axis.annotate(
            f"{total['mean']:.3f}",
            (place, total["low"]),
            (0, -8),
            textcoords="offset points",
            ha="center",
            va="top",
            color=color,
            fontweight="bold",
        )
    gain = evaluation["difference"]["total"]
    axis.set(xticks=(0, 1), xlim=(-0.5, 1.5), ylim=(0.4, 1.03))
    axis.set_xticklabels(("before", "after"))
    axis.set_xlabel(f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]", color=BLUE)


def result(axis: Any) -> None:
    """List what is published."""
    text_panel(axis, "")
    for number, (name, what) in enumerate(RESULT):
        y = 0.9 - number * 0.235
        axis.text(0.05, y, name, family="monospace", fontsize=10.5, color=BLUE, va="center")
        axis.text(0.05, y - 0.085, what, fontsize=9.5, color=GREY, va="center")


if __name__ == "__main__":
    main()
