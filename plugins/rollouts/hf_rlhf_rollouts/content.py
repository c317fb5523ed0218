"""Read content in parts: texts, and the blocks of the Anthropic Messages API.

A call is a block `tool_use`, its result a block `tool_result` in the user's next turn; server-side
tools have both in the agent's turn. Reasoning is a block `thinking`. The parts of LangChain's
messages, `tool_call`, `function_call` and `reasoning`, are read in the same way.

References: https://docs.claude.com/en/api/messages,
https://docs.claude.com/en/docs/agents-and-tools/tool-use/web-search-tool,
https://docs.claude.com/en/docs/build-with-claude/search-results
"""

import json
from collections.abc import Mapping
from typing import Any

from hf_rlhf.data import BadRow, describe_value, joined_text, part_type, text_in
from hf_rlhf_rollouts.cleaning import Noted

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use", "tool_call", "function_call")
_SERVER_ONLY = ("encrypted_content", "encrypted_index")
"""Fields of a search result that only the server can read."""


def is_call(part: Any) -> bool:
    """Return whether a part calls a tool."""
    return part_type(part) in _CALLS


def is_tool_result(part: Any) -> bool:
    """Return whether a part is a tool's result: the user's, the server's, or by MCP."""
    return part_type(part).endswith(("tool_result", "function_call_output"))


def scalar_text(value: Any, path: str, noted: Noted) -> str:
    """Return a content as text: numbers are converted and counted, None is "".

    Raises BadRow, with the path in the row, for a list or an object.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        noted["numbers_as_text"] += 1
        return json.dumps(value)
    raise BadRow("content_not_text", f"{path} is {describe_value(value)}, expected a text")


def tool_result_text(content: Any, path: str, noted: Noted) -> tuple[str, list[Any]]:
    """Return a tool's result as text, and its parts without text, such as images.

    Several texts, and search results with a title, become a JSON list, with a document for each.
    Raises BadRow for anything but text and JSON.
    """
    if part_type(content) == "web_fetch_result":
        content = [content]
    if isinstance(content, Mapping) or _is_data(content):
        return json.dumps(content, ensure_ascii=False), []
    if not isinstance(content, list):
        return scalar_text(content, path, noted), []
    readings = [(_document(part, noted) or text_in(part), part) for part in content]
    texts = [text for text, _ in readings if text is not None]
    others = [part for text, part in readings if text is None]
    if len(texts) == 1 and isinstance(texts[0], str):
        return texts[0], others
    return json.dumps(texts, ensure_ascii=False) if texts else "", others


def _is_data(content: Any) -> bool:
    """Whether a list has a tool's results, not content parts."""
    return isinstance(content, list) and not all(
        isinstance(part, str) or (isinstance(part, Mapping) and "type" in part) for part in content
    )


def _document(part: Any, noted: Noted) -> dict[str, Any] | None:
    """Return a search result or a page with its title; None for any other part."""
    match part_type(part):
        case "web_search_result":
            noted.update(f"document_fields_left_out.{key}" for key in _SERVER_ONLY if part.get(key))
            hidden = ("type", *_SERVER_ONLY)
            return {
                key: value for key, value in part.items() if key not in hidden and value is not None
            }
        case "search_result":
            fields = {"title": part.get("title"), "source": part.get("source")}
            return {**fields, "content": joined_text(part.get("content"))}
        case "web_fetch_result":
            page = _document(part.get("content"), noted)
            return page and {"url": part.get("url"), **page}
        case "document":
            source = part.get("source")  # "" for a file, an address, or a picture of pages
            text = joined_text(source.get("content")) if part_type(source) == "content" else ""
            text = str(source.get("data") or "") if part_type(source) == "text" else text
            return {"title": part.get("title"), "content": text} if text else None
    return None
