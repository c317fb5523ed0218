"""Parts of a turn in their common formats: text, thoughts, tool calls and results."""

import json
from collections.abc import Mapping
from typing import Any

from hf_rlhf.data.formats import repeated_key
from hf_rlhf.data.messages import split_thoughts
from hf_rlhf.data.rejected import BadRow
from hf_rlhf.data.values import decode_json_text, describe_value, without_nulls

CALLS = ("tool_calls", "function_call")
"""Keys of a turn for its calls: OpenAI's, and its older one for a single call."""
THOUGHTS = (
    *("reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "thinking"),
    *("thinking_content", "thinking_blocks", "thought", "thoughts", "think", "chain_of_thought"),
)
"""Keys of a turn for the assistant's thoughts."""
_THOUGHTS = frozenset(THOUGHTS)
_TEXT_TYPES = ("", "text", "input_text", "output_text")
_ARGUMENTS = ("arguments", "args", "parameters", "input")
"""OpenAI's, LangChain's, Llama's, Anthropic's."""
_CALL = 'expected {"name", "arguments"}, with arguments as an object or its JSON text.'
_THOUGHT_PARTS = ("thinking", "redacted_thinking", "reasoning")


def part_type(part: Any) -> str:
    """Return the type of a part; "" where it has none."""
    return str(part.get("type") or "") if isinstance(part, Mapping) else ""


def is_thought(part: Any) -> bool:
    """Return whether a part is reasoning, visible or hidden."""
    return part_type(part) in _THOUGHT_PARTS


def thought_in(part: Mapping[str, Any]) -> Any:
    """Return the text of a reasoning part; "" if it is hidden."""
    visible = next((part[key] for key in ("thinking", "reasoning", "text") if part.get(key)), None)
    return visible or joined_text(part.get("content") or part.get("summary"))


def call_id(call: Mapping[str, Any]) -> Any:
    """Return the id by which a result refers to a call; None where calls have none."""
    return call.get("call_id") or call.get("id")


def text_in(part: Any) -> str | None:
    """Return the text or refusal of a part; None if it has neither, or is reasoning."""
    if isinstance(part, Mapping):
        part = None if is_thought(part) else part.get("text", part.get("refusal"))
    return part if isinstance(part, str) else None


def joined_text(content: Any) -> str:
    """Join the texts of a part or a list of parts, one per line."""
    parts = content if isinstance(content, list) else [content]
    return "\n".join(text for part in parts if (text := text_in(part)))


def content_text(content: Any, where: str) -> tuple[str, str]:
    """Return the text and the thoughts of a content. Raises BadRow."""
    if isinstance(content, str):
        return content, ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        fields = part if isinstance(part, Mapping) else {"text": part}
        if is_thought(fields) or fields.get("thought") is True:
            thoughts.append(_visible_thought(fields, where))
            if any(texts):
                raise BadRow("wrong_type:content", f"{where}: a thought stands after a text.")
            continue
        kind, text = part_type(fields), fields.get("text")
        if kind not in _TEXT_TYPES or not isinstance(text, str):
            is_text = kind in ("", "text")
            problem = f"is {describe_value(text)}" if is_text else f"has a part of type {kind!r}"
            raise BadRow("wrong_type:content", f"{where}: the content {problem}, expected a text.")
        texts.append(text)
    return "".join(texts), "".join(thoughts)


def thought_text(fields: Mapping[str, Any], thought: str, where: str) -> str:
    """Return a turn's thoughts, from its parts or a key in `THOUGHTS`. Raises BadRow."""
    thoughts = {thought} if thought else set()
    for key in (key for key in _THOUGHTS & fields.keys() if fields[key]):
        parts = fields[key] if isinstance(fields[key], list) else [fields[key]]
        thoughts.add("".join(_visible_thought(part, f"{where}, {key!r}") for part in parts))
    if len(thoughts) > 1:
        keys = ", ".join(key for key in THOUGHTS if fields.get(key))
        raise BadRow(
            "two_thoughts",
            f"{where}: has different thoughts ({keys}). Name those to leave out in `ignore`.",
        )
    return next(iter(thoughts), "")


def _visible_thought(part: Any, where: str) -> str:
    text = thought_in(part) if isinstance(part, Mapping) else part
    if not isinstance(text, str) or not text:
        kind = part_type(part)
        problem = f"a part of type {kind!r} without a text" if kind else describe_value(part)
        raise BadRow(
            "wrong_type:thought",
            f"{where}: is {problem}, expected the text of a thought. Keys of turns that are named "
            "in `ignore` are left out.",
        )
    return text


def result_text(content: Any, where: str) -> str:
    """Return a tool result as text; objects and lists of data as JSON. Raises BadRow."""
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, list) and content and all(map(part_type, content)):
        return content_text(content, where)[0]
    return json.dumps(content, ensure_ascii=False)


def call_list(fields: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the calls under a turn's keys `CALLS` in OpenAI's format. Raises BadRow."""
    return [call for key in CALLS for call in _calls(fields.get(key), f"{where}, {key}")]


def written_calls(content: Any, where: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the calls in a JSON content, and the thought before them. Raises BadRow."""
    thought = ""
    if isinstance(content, str):
        thought, content = split_thoughts(content)
    calls = _calls(without_nulls(content), where)
    if not calls:
        raise BadRow("malformed_call", f"{where}: has no call, {_CALL}")
    return thought, calls


def _calls(value: Any, where: str) -> list[dict[str, Any]]:
    value = _decoded(value, where) or []
    calls = value if isinstance(value, list) else [value]
    return [_call(_decoded(call, where), where) for call in calls]


def _decoded(value: Any, where: str) -> Any:
    """Parse JSON text; return any other value unchanged. Raises BadRow for a duplicate key."""
    decoded = decode_json_text(value)
    if isinstance(value, str) and isinstance(decoded, dict | list) and (key := repeated_key(value)):
        raise BadRow("malformed_call", f"{where}: the key {key!r} occurs twice in one object.")
    return decoded


def _call(call: Any, where: str) -> dict[str, Any]:
    fields = call if isinstance(call, Mapping) else {}
    function = fields.get("function", fields)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise BadRow("malformed_call", f"{where}: is {describe_value(call)}, {_CALL}")
    key = next((key for key in _ARGUMENTS if key in function), None)
    arguments = {} if key is None else _decoded(function[key], where) or {}
    if not isinstance(arguments, Mapping):
        problem = f"the arguments of {name} are {describe_value(function[key])}"
        raise BadRow("malformed_call", f"{where}: {problem}, expected a JSON object.")
    names = {"id": call_id(fields)} if call_id(fields) else {}
    return {**names, "type": "function", "function": {"name": name, "arguments": arguments}}
