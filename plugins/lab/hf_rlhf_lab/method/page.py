"""Write a method's results: `method.json` and a page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf.formatting import interval, markdown_table, number
from hf_rlhf.runs import environment
from hf_rlhf.storage import atomic_write_json, atomic_write_text, now
from hf_rlhf_lab.method.steps import FRAGMENT, Pipeline

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
