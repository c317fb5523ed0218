"""Demonstrations of tasks: the expected calls, made for real, and the answer; or with mistakes."""

import random
from collections.abc import Sequence
from typing import Any

from hf_rlhf_agents.desk import tools_of
from hf_rlhf_agents.scores import ANSWER
from hf_rlhf_agents.tasks import Call, Task

GIVES_UP = "I cannot answer"


def demonstrate(task: Task, calls: Sequence[Call] | None = None) -> list[dict[str, Any]]:
    """Return the messages of an agent that makes calls and answers by their results.

    Args:
        task: with its documents.
        calls: instead of the expected ones; if they are others, the answer is that of the last
            lookup, right or wrong.
    """
    tools = tools_of(task)
    messages: list[dict[str, Any]] = []
    made, result = task.calls if calls is None else calls, ""
    for call in made:
        arguments = {name: _text(value) for name, value in call.arguments.items()}
        try:
            result = tools[call.tool](**arguments)
        except ValueError as error:
            result = str({"error": str(error)})
        function = {"name": call.tool, "arguments": arguments}
        messages += [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": function}],
            },
            {"role": "tool", "name": call.tool, "content": result},
        ]
    if calls is None or tuple(calls) == task.calls:
        return [*messages, answered(task)]
    last = result.rstrip(".").rpartition(" ")[2] or GIVES_UP
    return [*messages, {"role": "assistant", "content": f"{ANSWER} {last}"}]


def answered(task: Task) -> dict[str, Any]:
    """Return the message with the right answer."""
    answer = task.answers[0] if task.answers else GIVES_UP
    return {"role": "assistant", "content": f"{ANSWER} {answer}"}


def careless(task: Task, rng: random.Random, mistakes: float) -> list[Call]:
    """Return the expected calls, with a mistake in a share `mistakes`: one left out at the end,
    or one made twice."""
    calls = list(task.calls)
    if rng.random() < mistakes:
        if rng.random() < 0.5:
            return calls[:-1]
        at = rng.randrange(len(calls))
        return [*calls[: at + 1], *calls[at:]]
    return calls


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
