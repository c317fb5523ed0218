"""Forms that are known in order to be refused by their name, with a cure.

* Steps of a smolagents agent: what its code agents do is Python, with searches and answers inside
  it: to tell them apart would be to guess.
* A trajectory of SWE-agent: its actions are commands of a shell, not calls.
* A whole log of inspect_ai: a row is a sample of it, and those are read.

References: `AgentMemory.get_full_steps` of https://github.com/huggingface/smolagents,
https://swe-agent.com/latest/usage/trajectories, https://inspect.aisi.org.uk/eval-logs.html
"""

from collections.abc import Callable, Mapping
from typing import Any

_FIRST = 4
"""Of the steps looked at: a task and a plan stand before the first action."""
_AS_CHAT = (
    "Write each run as `messages` (form chat): the task as the user's, each {said} as the "
    "assistant's {calls}, each `{found}` as the tool's, and the answer as the assistant's last"
)


def why_refused(values: Mapping[str, Any]) -> str:
    """Return what a row is that is known and not read, and what to do; "" if it is no such row."""
    return next((why for fits, why in _REFUSED if fits(values)), "")


def _is_smolagents(values: Mapping[str, Any]) -> bool:
    held = ("steps", "memory", "trace", "trajectory")
    return any(_steps_with(values.get(key), "model_output") for key in held)


def _is_swe_agent(values: Mapping[str, Any]) -> bool:
    return _steps_with(values.get("trajectory"), "action", "observation")


def _is_inspect_log(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("samples"), list) and isinstance(values.get("eval"), Mapping)


def _steps_with(held: Any, *names: str) -> bool:
    if isinstance(held, Mapping):
        held = held.get("steps")
    return isinstance(held, list) and any(
        isinstance(step, Mapping) and all(name in step for name in names) for step in held[:_FIRST]
    )


_REFUSED: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (
        _is_smolagents,
        "it has the steps of a smolagents agent (`model_output`, `tool_calls`, `observations`), "
        "which are not read. "
        + _AS_CHAT.format(
            said="`model_output`", calls="with its `tool_calls`", found="observations"
        ),
    ),
    (
        _is_swe_agent,
        "it is a trajectory of SWE-agent (`action`, `observation`, `thought`), which is not read. "
        + _AS_CHAT.format(
            said="`thought`", calls="with its `action` as a tool call", found="observation"
        ),
    ),
    (
        _is_inspect_log,
        "it is a whole log of inspect_ai, of which each entry of `samples` is a row (form chat). "
        "Write them one a line: jq -c '.samples[]' LOG.json > samples.jsonl",
    ),
)
