"""The tools of tasks for inspect_ai, with a record of their calls per sample."""

from collections.abc import Callable, Iterable
from typing import Any

from inspect_ai.tool import ToolDef, ToolError
from inspect_ai.util import store

from hf_rlhf_agents.desk import TOOLS, ToolUnavailable, schemas
from hf_rlhf_agents.tasks import Task

TASK, EPOCH = "agents:task", "agents:epoch"
CALLS, UNAVAILABLE = "agents:calls", "agents:unavailable"
"""Keys of a sample's store."""


def tools_of(tasks: Iterable[Task]) -> list[ToolDef]:
    """Return the tools that any of the tasks has, with the descriptions of training."""
    names = dict.fromkeys(name for task in tasks for name in task.tools)
    return [_tool(name) for name in names]


def _tool(name: str) -> ToolDef:
    method = getattr(TOOLS[name](), name)
    (schema,) = schemas([name])
    about = schema["function"]

    async def call(**arguments: Any) -> str:
        record(CALLS, {"tool": name, "arguments": arguments})
        environment = TOOLS[name]()
        environment.reset(task=store().get(TASK))
        try:
            return str(getattr(environment, name)(**arguments))
        except ToolUnavailable as error:
            record(UNAVAILABLE, f"{name}: {error}")
            raise ToolError(str(error)) from error
        except (TypeError, ValueError) as error:
            raise ToolError(str(error)) from error

    return ToolDef(
        _with_signature(call, method),
        name=name,
        description=about["description"],
        parameters={
            key: each["description"] for key, each in about["parameters"]["properties"].items()
        },
        options={"schema": schema},
    )


def record(key: str, value: Any) -> None:
    """Append to a list in the sample's store."""
    store().set(key, [*store().get(key, []), value])


def _with_signature(call: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the signature of a method, which inspect_ai reads."""
    import inspect

    call.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    call.__annotations__ = {**method.__annotations__}
    return call
