"""Prompts and completions as text, whichever of TRL's two shapes they have."""

from typing import Any


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
