"""Messages of inspect_ai in the form of Chat Completions."""

from typing import Any

from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageTool


def as_dict(message: ChatMessage) -> dict[str, Any]:
    """Return a message with its calls, whose arguments are objects."""
    plain: dict[str, Any] = {"role": message.role, "content": message.text}
    if isinstance(message, ChatMessageTool):
        error = str({"error": message.error.message}) if message.error else message.text
        return {**plain, "content": error, "name": message.function or ""}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "function": {"name": call.function, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return plain
