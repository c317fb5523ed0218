"""Where a row has its messages, who speaks in each, and what all readers of messages refuse."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf.data import ROLES, TOOL_ROLES
from hf_rlhf_traces.readers.rough import BadRow, kind_of

MESSAGES = ("messages", "conversation", "conversations")
COMPLETION = "completion"
"""Where TRL and verifiers have the messages that follow those of `prompt`."""
ASKED = ("system", "developer", "user")
"""Roles that speak before the agent does."""
CALLED = "function_call"
"""The role of a message that is a call, written as JSON: ShareGPT's."""
_ROLES = {name: role for name, role in {**ROLES, **TOOL_ROLES}.items() if name not in ASKED}
"""Spelling of a role -> the role; what speaks before the agent keeps its own."""
_SHAREGPT = {*_ROLES, *ASKED, "assistant", "tool", CALLED}


def messages_of(values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return the column with messages and what stands there; ("", ()) without any."""
    for key in MESSAGES:
        held = values.get(key)
        if isinstance(held, list) and not has_items(held):
            messages = [_with_role(message) for message in held]
            if any(isinstance(message, Mapping) and "role" in message for message in messages):
                return key, messages
    return _prompt_and_completion(values)


def _prompt_and_completion(values: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    prompt, completion = values.get("prompt"), values.get(COMPLETION)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not (isinstance(prompt, list) and isinstance(completion, list)):
        return "", ()
    messages = [_with_role(message) for message in (*prompt, *completion)]
    if not messages or not all(
        isinstance(message, Mapping) and "role" in message for message in messages
    ):
        return "", ()
    return COMPLETION, messages


def has_items(held: Any) -> bool:
    """Return whether a list has calls as items of their own, as the Responses API has them."""
    return isinstance(held, list) and any(
        isinstance(message, Mapping)
        and message.get("type") in ("function_call", "function_call_output")
        for message in held
    )


def _with_role(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    name = message.get("role") or message.get("from") or message.get("type")
    role = _ROLES.get(name, name) if isinstance(name, str) else None
    if role is None or role == message.get("role"):
        return message
    if "value" in message and message.get("from") == name and name in _SHAREGPT:
        rest = {key: value for key, value in message.items() if key not in ("from", "value")}
        return {**rest, "role": role, "content": message["value"]}
    return {**message, "role": role}


def placed(held: str, messages: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each message behind its path. Raises BadRow for what is no object."""
    field = f"prompt + {COMPLETION}" if held == COMPLETION else held
    for at, message in enumerate(messages):
        path = f"{field}[{at}]"
        if not isinstance(message, Mapping):
            raise BadRow("step_not_object", f"{path} is {kind_of(message)}, expected an object")
        yield path, message


def turns(messages: Sequence[Any]) -> int:
    """Return how many messages are of the user or the agent."""
    roles = (message.get("role") for message in messages if isinstance(message, Mapping))
    return sum(role in ("user", "assistant") for role in roles)


def second_question(path: str, text: str) -> BadRow:
    """Return the error for a question that is asked when the agent is at work: a trace has one."""
    detail = f"{path}: a question after the agent's first turn: {text:.80}"
    return BadRow("user_turn_in_the_middle", detail.rstrip(": "))
