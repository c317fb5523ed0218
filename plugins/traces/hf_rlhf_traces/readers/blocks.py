"""Content in parts: texts, and the blocks of the Anthropic Messages API.

A call is a block `tool_use`, what a tool returned a block `tool_result` in the next turn of the
user; tools that the server runs have both in the agent's turn. Reasoning is a block `thinking`. The
parts of LangChain's messages, `tool_call`, `function_call` and `reasoning`, are read alike.

References: https://docs.claude.com/en/api/messages,
https://docs.claude.com/en/docs/agents-and-tools/tool-use/web-search-tool,
https://docs.claude.com/en/docs/build-with-claude/search-results
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf_traces.readers.rough import Noted, text_of

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "function_call")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_HIDDEN = ("encrypted_content", "encrypted_index")
"""Fields of a search result that only the server can read."""


def kind(part: Any) -> str:
    """Return the type of a part; "" where it has none."""
    return str(part.get("type") or "") if isinstance(part, Mapping) else ""


def is_call(part: Any) -> bool:
    """Return whether a part calls a tool."""
    return kind(part) in _CALLS


def is_result(part: Any) -> bool:
    """Return whether a part is what a tool returned: of one's own, of the server, or by MCP."""
    return kind(part).endswith("tool_result")


def is_thought(part: Any) -> bool:
    """Return whether a part is reasoning, which may be hidden."""
    return kind(part) in _THOUGHTS


def thought_in(part: Mapping[str, Any]) -> Any:
    """Return the content of a part that is reasoning; None where it is hidden."""
    visible = next((part[key] for key in ("thinking", "reasoning", "text") if part.get(key)), None)
    return visible or _joined(part.get("summary"))


def call_id(call: Mapping[str, Any]) -> Any:
    """Return what a result names a call by; None where calls have no names."""
    return call.get("call_id") or call.get("id")


def text_in(part: Any) -> str | None:
    """Return the text of a part; None where it has none of its own, or is reasoning."""
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and not is_thought(part) and isinstance(part.get("text"), str):
        return str(part["text"])
    return None


def returned(content: Any, path: str, noted: Noted) -> tuple[str, list[Any]]:
    """Return what a tool returned as text, and the parts that are none: images, say.

    Several texts, and search results with a title, become a JSON list, which is read as a document
    each. Raises BadRow for what is neither text nor JSON.
    """
    if isinstance(content, Mapping) and kind(content) == "web_fetch_result":
        content = [content]
    if isinstance(content, Mapping) or _is_data(content):
        # What a tool returned, not written out.
        return json.dumps(content, ensure_ascii=False), []
    if not isinstance(content, list):
        return text_of(content, path, noted), []
    texts: list[Any] = []
    others = []
    for part in content:
        text = _document(part, noted) or text_in(part)
        if text is None:
            others.append(part)
        else:
            texts.append(text)
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0], others
    return json.dumps(texts, ensure_ascii=False) if texts else "", others


def _is_data(content: Any) -> bool:
    """Whether a list is no list of parts, but of what a tool found."""
    return isinstance(content, list) and not all(
        isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content
    )


def _document(part: Any, noted: Noted) -> dict[str, Any] | None:
    """Return a search result or a page with its title; None for a part that is none."""
    if not isinstance(part, Mapping):
        return None
    match kind(part):
        case "web_search_result":
            noted.update(f"document_fields_left_out.{key}" for key in _HIDDEN if part.get(key))
            left = ("type", *_HIDDEN)
            return {
                key: value for key, value in part.items() if key not in left and value is not None
            }
        case "search_result":
            fields = {"title": part.get("title"), "source": part.get("source")}
            return {**fields, "content": _joined(part.get("content"))}
        case "web_fetch_result":
            page = _document(part.get("content"), noted)
            return page and {"url": part.get("url"), **page}
        case "document":
            text = _page(part.get("source"))
            return {"title": part.get("title"), "content": text} if text else None
    return None


def _page(source: Any) -> str:
    """Return the text of a document; "" for a file, an address, or a picture of pages."""
    match kind(source):
        case "text":
            return str(source.get("data") or "")
        case "content":
            return _joined(source.get("content"))
    return ""


def _joined(content: Any) -> str:
    parts: Sequence[Any] = content if isinstance(content, list) else [content]
    return "\n".join(text for part in parts if (text := text_in(part)))
