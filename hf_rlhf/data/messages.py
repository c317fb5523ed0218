"""Prompts and completions of either TRL format (standard, conversational) as text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_END = r"(?:(?<![`'\"])</think(?:ing)?>\s*)+"
_UNOPENED = re.compile(rf"((?:(?!<think).)*?){_END}", re.DOTALL)
_ONE = rf"<think(?:ing)?>(.*?)(?:{_END}|\Z)"
_THOUGHT = re.compile(_ONE, re.DOTALL)
_THOUGHTS = re.compile(rf"(?:\A\s*|^[ \t]*)(?:{_ONE})+", re.DOTALL | re.MULTILINE)

_TEXTS = (None, "text", "input_text", "output_text")


def prompt_in(row: Mapping[str, Any]) -> Any:
    """Return a row's `prompt`, or its `messages` without a last answer; else None."""
    if row.get("prompt"):
        return row["prompt"]
    messages: Any = row.get("messages") or ()
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return list(messages[:-1] if answered else messages) or None


def text_of(turns: Any) -> str:
    """Return the text of a completion or prompt: a string, or a list of chat messages.

    The contents of messages are joined by newlines. Of a content in parts, only text parts are
    used, without thinking. A missing content (a bare tool call) counts as empty.
    """
    if isinstance(turns, str):
        return turns
    return "\n".join(_content(turn.get("content")) for turn in turns)


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)]
    return "".join(part.get("text", "") for part in parts if part.get("type") in _TEXTS)


def transcript_of(turns: Any) -> str:
    """Return a completion for readers: like `text_of`, with tool calls and results."""
    if isinstance(turns, str):
        return turns
    lines: list[str] = []
    for turn in turns:
        text = _content(turn.get("content"))
        lines += [f"<- {text}" if turn.get("role") == "tool" else text] * bool(text)
        for call in turn.get("tool_calls") or ():
            function = call.get("function", call)
            lines.append(f"-> {function.get('name')}({json.dumps(function.get('arguments'))})")
    return "\n".join(lines)


def tool_counts(completion: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `turns`, `tool_calls` and `tool_failures` of a completion as a list of messages.

    A failure is a call whose result is TRL's error: the tool raised, or is unknown.
    """
    results = [turn for turn in completion if turn["role"] == "tool"]
    failed = [turn for turn in results if str(turn["content"]).startswith("{'error': ")]
    counts = (len(completion) - len(results), len(results), len(failed))
    return dict(zip(TOOL_METRICS, map(float, counts), strict=True))


TOOL_METRICS: Mapping[str, str] = {
    "turns": "turns of the model in a completion",
    "tool_calls": "calls of tools in a completion",
    "tool_failures": "calls in a completion that ended with an error",
}
"""Metric of a completion with tools -> description."""


def split_thoughts(text: str) -> tuple[str, str]:
    """Split an agent's turn into its thoughts and the rest.

    A thought is `<think>…</think>` at the start of a line or directly after another thought. A
    thought without `<think>` (the chat template wrote it) starts with the turn. A thought without
    `</think>` was truncated, and ends with the turn.
    """
    if "think" not in text:
        return "", text
    unopened = _UNOPENED.match(text)
    thoughts = [unopened[1]] if unopened else []
    rest = text[unopened.end() :] if unopened else text
    for match in _THOUGHTS.finditer(rest):
        thoughts += _THOUGHT.findall(match[0])
    thought = "\n\n".join(text.strip() for text in thoughts if text.strip())
    return thought, _THOUGHTS.sub("", rest)
