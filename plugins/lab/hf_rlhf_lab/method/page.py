"""Write a method's results: `method.json`, a page and a picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.cards import png_panels
from hf_rlhf.formatting import interval, markdown_table, number
from hf_rlhf.runs import environment
from hf_rlhf.storage import atomic_write_json, atomic_write_text, now
from hf_rlhf_lab.method.file import MethodFile
from hf_rlhf_lab.method.steps import FRAGMENT, Pipeline
from hf_rlhf_lab.validation.plot import (
    BAD,
    GOOD,
    LINE,
    NEUTRAL,
    draw_bins,
    draw_interval,
    label_rows,
)

NAME = "method"


def write(pipeline: Pipeline, stopped: str, command: str) -> str:
    """Write the results into the folder, and return the headline."""
    spec, results = pipeline.method.spec, pipeline.results
    headline = f"{spec.title}: all {len(results)} steps passed."
    if stopped:
        headline = f"{spec.title}: stopped at {stopped}. {results[stopped]['reason']}."
    content = {
        "schema": 1,
        "headline": headline,
        "stopped": stopped or None,
        "criteria": {name: each.model_dump() for name, each in spec.criteria.items()},
        "data": {"name": pipeline.gold.name, "digest": pipeline.gold.digest},
        "steps": results,
        "created": now(),
        "command": command,
        "environment": environment().to_json(),
    }
    folder = pipeline.folder
    if stopped:
        (folder / FRAGMENT).unlink(missing_ok=True)  # from an earlier run with all steps passed
    else:
        pipeline.write_reward()
    draw(results, headline, spec, folder / f"{NAME}.png")
    atomic_write_text(folder / f"{NAME}.md", page(content))
    atomic_write_json(folder / f"{NAME}.json", content)
    return headline


def page(content: Mapping[str, Any]) -> str:
    """Return the results as Markdown."""
    steps = content["steps"]
    criteria = [[name, each["means"]] for name, each in content["criteria"].items()]
    outcomes = [
        [name, "pass", step["summary"]] if step["passed"] else [name, "**STOP**", step["reason"]]
        for name, step in steps.items()
    ]
    parts = [
        f"# {content['headline']}",
        f"![What the steps measured]({NAME}.png)",
        markdown_table(["criterion", "what it means"], criteria),
        markdown_table(["step", "result", "what was measured"], outcomes),
    ]
    if "calibration" in steps:
        head = ["signal", "rho with the grade", "kept", "weight", "rho lost without it"]
        text = (
            "Means with 95% bootstrap intervals over prompts; weights are of standardised signals."
        )
        parts += ["## Signals", text, markdown_table(head, list(_signals(steps)))]
    if "validation" in steps:
        parts.append(
            "The checks of the reward: [validation/validation.md](validation/validation.md)."
        )
    if not content["stopped"]:
        parts.append(f"The reward as a fragment of a run file: [{FRAGMENT}]({FRAGMENT}).")
    parts.append(f"Made by `{content['command']}`, {content['created']}.")
    return "\n\n".join(parts) + "\n"


def _signals(steps: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    fit = steps.get("weights", {"signals": {}, "loss": {}})
    for label, each in steps["calibration"]["signals"].items():
        choice = "yes" if each["kept"] else f"no: {each['reason']}"
        weighted, loss = fit["signals"].get(label), fit["loss"].get(label)
        weight = number(weighted["weight"]) if weighted else ""
        yield [label, interval(each["rho"]), choice, weight, interval(loss) if loss else ""]


def draw(steps: Mapping[str, Any], headline: str, spec: MethodFile, path: Path) -> None:
    """Draw the picture: green is used or passed, orange dropped or stopped."""
    panels: Mapping[str, Callable[[Any, Mapping[str, Any]], None]] = {
        "calibration": partial(_draw_signals, min_rho=spec.min_rho),
        "weights": _draw_weights,
        "validation": _draw_reliability,
        **({"survival": _draw_survival} if spec.survival else {}),
    }
    with png_panels(path, len(panels), (5.4, 3.9), across=2, caption=headline) as plots:
        for axes, (name, show) in zip(plots, panels.items(), strict=True):
            step = steps.get(name)
            if step is None or "run" in step and "points" not in step:
                axes.set_axis_off()
                axes.set_title(f"{name}: {'stopped by the monitor' if step else 'not reached'}")
            else:
                show(axes, step)


def _colour(good: bool) -> str:
    return GOOD if good else BAD


def _draw_signals(axes: Any, step: Mapping[str, Any], *, min_rho: float) -> None:
    signals = {label: each for label, each in step["signals"].items() if each["rho"]}
    for at, each in enumerate(signals.values()):
        draw_interval(axes, at, each["rho"], _colour(each["kept"]))
    axes.axvline(0, color=LINE, lw=1)
    axes.axvline(min_rho, color=LINE, lw=1, ls="--")
    label_rows(axes, list(signals), xlabel="rank correlation with the grade")
    counts = f"{sum(each['kept'] for each in signals.values())} of {len(step['signals'])}"
    axes.set_title(f"1 which signals agree with the grade: {counts}")


def _draw_weights(axes: Any, step: Mapping[str, Any]) -> None:
    weights = {label: each["weight"] for label, each in step["signals"].items()}
    for at, (label, weight) in enumerate(weights.items()):
        loss = step["loss"][label]
        text = f" {weight:.2f}"
        if weight and loss:
            text += f" (without it rho changes by {-loss['mean']:+.2f})"
        axes.barh(at, weight, color=GOOD, height=0.6)
        axes.text(weight, at, text, va="center", fontsize=8)
    axes.grid(visible=False)
    label = "weight of the standardised signal"
    label_rows(axes, list(weights), xlim=(0, 2 * max(weights.values()) or 1), xlabel=label)
    rho = f"rho {step['rho']['mean']:.2f} on test prompts" if step["rho"] else "no agreement"
    axes.set_title(f"2 their weighted sum: {rho}")


def _draw_reliability(axes: Any, step: Mapping[str, Any]) -> None:
    checks = {check["name"]: check for check in step["report"]["checks"]}
    bins = checks["calibration"]["details"].get("bins", [])
    draw_bins(axes, range(1, len(bins) + 1), bins, _colour(step["passed"]))
    axes.axhline(0.5, color=LINE, lw=1, ls="--")
    axes.set(
        ylim=(0, 1.05),
        xlabel="pairs by the difference of their rewards, in tenths",
        ylabel="better response earns more",
    )
    accuracy = checks["agreement"]["measures"].get("accuracy")
    text = f"right on {accuracy['mean']:.0%} of pairs" if accuracy else "not measurable"
    axes.set_title(f"3 the reward on new responses: {text}")


def _draw_survival(axes: Any, step: Mapping[str, Any]) -> None:
    for name, colour in (("before", NEUTRAL), ("after", _colour(step["passed"]))):
        x, y = np.array(step["points"][name]).T
        axes.plot(x, y, ".", color=colour, alpha=0.3, ms=5)
        label = f"{name} training"
        axes.plot(np.nanmean(x), np.nanmean(y), "D", color=colour, mec="black", ms=9, label=label)
    gain, rho = step["gains"]["grade"], step["rho"]
    text = f"grade {gain['mean']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]" if gain else ""
    axes.legend(loc="lower right", fontsize=8)
    axes.set(xlabel="reward", ylabel="grade")
    axes.set_title(f"4 trained on it: {text}" + (f", rho {rho['mean']:.2f}" if rho else ""))
