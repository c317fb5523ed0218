"""Record a run's tools and their calls during training."""

from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.formatting import code, settings_line
from hf_rlhf.runs.run import Run

_TOOL_LOGS = {
    "tools/call_frequency": "calls in a completion",
    "tools/failure_frequency": "share of the calls that failed",
    "tools/turns": "turns of the model in a completion",
}
"""Key of the log -> description."""


def tool_report(run: Run, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of tool calls and failures from the logs of TRL and the reward."""
    rows = []
    for key, title in _TOOL_LOGS.items() if run.toolset is not None else ():
        values = [entry[key] for entry in history if entry.get(key) is not None]
        if values:
            mean = sum(values) / len(values)
            shown = {"first logged step": values[0], "mean": mean, "last logged step": values[-1]}
            rows.append({"per step": title, **shown})
    return {"Calls of tools": rows} if rows else {}


def tools_line(run: Run) -> dict[str, str]:
    """Return the line on tools for the card's training setup."""
    toolset = run.toolset
    if toolset is None:
        return {}
    text = ", ".join(map(code, toolset.names)) or "none"
    for component in run.components:
        if component["kind"] == "environments":
            source = " ".join(str(component[key]) for key in ("package", "version"))
            text += f", with the environment {code(toolset.name)} ({source.strip()})"
            if component["arguments"]:
                text += f": {settings_line(component['arguments'], *component['arguments'])}"
    rounds = toolset.max_rounds
    limit = "any number of rounds of calls" if rounds is None else f"at most {rounds} rounds"
    return {"Tools": f"{text}; {limit} in a completion"}
