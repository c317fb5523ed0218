"""Dumps of the steps of a smolagents agent, which are known in order to be refused with a cure.

What its code agents do is Python, with searches and answers inside it: to tell them apart would be
to guess.

Reference: `AgentMemory.get_full_steps` of https://github.com/huggingface/smolagents
"""

from collections.abc import Mapping
from typing import Any

_HELD = ("steps", "memory", "trace", "trajectory")
_FIRST = 4
"""Of the steps looked at: a task and a plan stand before the first action."""
WHY = (
    "it has the steps of a smolagents agent (`model_output`, `tool_calls`, `observations`), which "
    "are not read. Write each run as `messages` (form chat): the `task` as the user's, each "
    "`model_output` as the assistant's with its `tool_calls`, `observations` as the tool's, and "
    "the last `action_output` as the assistant's answer"
)


def fits(values: Mapping[str, Any]) -> bool:
    """Return whether a row has such steps, bare or within its memory."""
    return any(_acts(values.get(key)) for key in _HELD)


def _acts(held: Any) -> bool:
    if isinstance(held, Mapping):
        held = held.get("steps")
    return isinstance(held, list) and any(
        isinstance(step, Mapping) and "model_output" in step for step in held[:_FIRST]
    )
