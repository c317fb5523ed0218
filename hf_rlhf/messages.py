"""Prompts and completions as text, whichever of TRL's two shapes they have."""

from collections.abc import Mapping
from typing import Any


def prompt_in(row: Mapping[str, Any]) -> Any:
    """Return what a row asks: its `prompt`, or its `messages` without a last answer; else None."""
    if row.get("prompt"):
        return row["prompt"]
    messages: Any = row.get("messages") or ()
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return list(messages[:-1] if answered else messages) or None


def text_of(turns: Any) -> str:
    """Return the text of a completion or prompt: a string, or a list of chat messages.

    Of a message list, the contents are joined by newlines; a content given as a list of parts
    keeps its text parts. A missing content (a bare tool call) counts as empty.
    """
    if isinstance(turns, str):
        return turns
    return "\n".join(_content(turn.get("content")) for turn in turns)


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content if isinstance(part, dict))
