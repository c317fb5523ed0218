"""The documents in a tool's output: from JSON in texts and from wrapping objects.

Search tools put their results into `{"results": […]}`, beside the query and bookkeeping, often as
JSON text, sometimes twice; a document has its text in a field of its own or in a list of snippets.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_TITLES = ("title", "name", "heading", "headline")
_SNIPPETS = ("snippets", "passages", "highlights")
"""Fields with several texts of a document, as a list."""
_CONTENTS = (
    *("content", "contents", "text", "snippet", "body", "passage", "page_content"),
    *_SNIPPETS,
)
_URLS = ("url", "link", "href")
_WRAPPERS = (
    *("results", "result", "search_results", "documents", "output", "data", "items", "hits"),
    *("matches", "organic", "organic_results", "webPages", "passages", "content", "value"),
)
_REPEATING = ("html", "formattedUrl", "displayLink", "kind")
"""Beginnings of fields that repeat others, as Google's `htmlSnippet` does."""
_REQUEST = ("query", "queries", "q", "search_query", "kind", "status", "request_id")
"""Keys beside the results that repeat the request."""
_MAX_WRAPPERS = 5


@dataclass(frozen=True)
class ToolDocument:
    """One of the documents that a tool returned."""

    content: str
    title: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The visible fields as text, in their order; none for a plain text."""
    title_field: str = ""
    content_field: str = ""

    @staticmethod
    def title_and_content(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return title and content of an object by the names of their fields, in this order.

        The texts of a list of snippets are one content; other values are unchanged.
        """
        title, content = _first_present(values, _TITLES), _first_present(values, _CONTENTS)
        text = values.get(content)
        return {
            title: values.get(title),
            content: plain_text(text) if content in _SNIPPETS else text,
        }


def parse_json(text: str) -> Any:
    """Return the object or list that a text is, or the text where it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def tool_documents(
    text: str, parse: Callable[[str], Any] = parse_json
) -> tuple[list[ToolDocument], list[str]]:
    """Return the documents in what a tool returned, and the names of the fields left out.

    Each object or text of a JSON list is a document; any other text is one. Empty fields are left
    out silently; lists, objects and repetitions beside a text are named.

    Args:
        text: as the tool returned it.
        parse: returns the value of a JSON text, or the text where it is none.
    """
    values, left_out = _unwrap(text, parse)
    values = [value for value in values if value is not None]
    if not all(isinstance(value, (dict, str)) for value in values):
        return [ToolDocument(plain_text(values[0] if len(values) == 1 else values))], left_out
    return [_document(value, left_out) for value in values], left_out


def _first_present(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if values.get(name) is not None), names[0])


def _document(value: dict[str, Any] | str, left_out: list[str]) -> ToolDocument:
    if isinstance(value, str):
        return ToolDocument(value)
    fields = dict(_visible_fields(value, left_out))
    title, content = ToolDocument.title_and_content(value)
    return ToolDocument(fields.get(content, ""), fields.get(title, ""), fields, title, content)


def _unwrap(text: str, parse: Callable[[str], Any]) -> tuple[list[Any], list[str]]:
    """Return the results in a text, and the names of the fields around them that are left out.

    An object with a single wrapping key is unwrapped; one with several keys if one of them holds a
    list of documents: then other texts, such as a summary, are one more document.
    """
    left_out: list[str] = []
    beside: list[Any] = []
    value: Any = text
    for _ in range(_MAX_WRAPPERS):
        inner = parse(value) if isinstance(value, str) else value
        if isinstance(inner, dict):
            inner = _unwrapped(inner, parse, beside, left_out)
        if inner is value:
            break
        value = inner
    return [*(value if isinstance(value, list) else [value]), *beside], left_out


def _unwrapped(
    wrapper: dict[str, Any], parse: Callable[[str], Any], beside: list[Any], left_out: list[str]
) -> Any:
    if len(wrapper) == 1:
        ((key, inner),) = wrapper.items()
        return inner if key in _WRAPPERS else wrapper
    for key in filter(wrapper.__contains__, _WRAPPERS):
        inner = wrapper[key]
        inner = parse(inner) if isinstance(inner, str) else inner
        rest = {
            name: value for name, value in wrapper.items() if name != key and not _is_empty(value)
        }
        texts = {
            name: value
            for name, value in rest.items()
            if isinstance(value, str) and name not in _REQUEST
        }
        if _are_documents(inner) or _holds_documents(inner) or (inner == [] and not texts):
            left_out += [name for name in rest if name not in texts]
            beside += [texts] if texts else []
            return inner
    return wrapper


def _holds_documents(wrapper: Any) -> bool:
    return isinstance(wrapper, dict) and any(_are_documents(wrapper.get(key)) for key in _WRAPPERS)


def _are_documents(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_document, value))


def _is_document(value: Any) -> bool:
    return isinstance(value, dict) and any(value.get(key) for key in (*_CONTENTS, *_URLS))


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _visible_fields(values: Mapping[str, Any], left_out: list[str]) -> Iterator[tuple[str, str]]:
    fields = {key: value for key, value in values.items() if not _is_empty(value)}
    has_text = any(key in fields for key in _CONTENTS)
    for key, value in fields.items():
        nested = isinstance(value, (list, dict)) and key not in _CONTENTS
        if has_text and (nested or key.startswith(_REPEATING)):
            left_out.append(key)
        else:
            yield key, plain_text(value)


def plain_text(value: Any) -> str:
    """Return a value as text: of a list of snippets, their texts, a line each."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [
            next((part[key] for key in _CONTENTS if isinstance(part.get(key), str)), None)
            if isinstance(part, dict)
            else part
            for part in value
        ]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return json.dumps(value, ensure_ascii=False)
