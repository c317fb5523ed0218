"""What a tool returned, as documents: out of JSON in texts and the objects that wrap them.

Search tools put what they found into `{"results": […]}`, beside the query and bookkeeping, often as
JSON text, sometimes twice; a document has its text in a field of its own or in a list of snippets.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

TITLES = ("title", "name", "heading", "headline")
SNIPPETS = ("snippets", "passages", "highlights")
"""Where it has several texts, as a list."""
CONTENTS = ("content", "contents", "text", "snippet", "body", "passage", "page_content", *SNIPPETS)
"""Where a document has its text; of several, the first counts."""
URLS = ("url", "link", "href")
WRAPPERS = (
    *("results", "result", "search_results", "documents", "output", "data", "items", "hits"),
    *("matches", "organic", "organic_results", "webPages", "passages", "content", "value"),
)
"""Keys of an object that wraps what a tool found."""
_REPEATING = ("html", "formattedUrl", "displayLink", "kind")
"""How fields begin that say the same again, as Google's `htmlSnippet` does."""
_REQUEST = ("query", "queries", "q", "search_query", "kind", "status", "request_id")
"""Keys beside the results that repeat the request."""
_DEEPEST = 5


def parse_json(text: str) -> Any:
    """Return the object or list that a text is, or the text where it is none."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def result_items(
    output: Any, parse: Callable[[str], Any] = parse_json
) -> tuple[list[Any], list[str]]:
    """Return what a tool found, and the names of the fields around it that are left out.

    An object with a single key that wraps is unwrapped; one with several is where a list of
    documents stands in one of them: then other texts, such as a summary, are one more document.
    """
    left_out: list[str] = []
    beside: list[Any] = []
    value = output
    for _ in range(_DEEPEST):
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
        return inner if key in WRAPPERS else wrapper
    for key in filter(wrapper.__contains__, WRAPPERS):
        inner = wrapper[key]
        inner = parse(inner) if isinstance(inner, str) else inner
        rest = {
            name: field for name, field in wrapper.items() if name != key and not _is_empty(field)
        }
        texts = {
            n: field for n, field in rest.items() if isinstance(field, str) and n not in _REQUEST
        }
        if _are_documents(inner) or _holds_documents(inner) or (inner == [] and not texts):
            left_out += [name for name in rest if name not in texts]
            beside += [texts] if texts else []
            return inner
    return wrapper


def _holds_documents(wrapper: Any) -> bool:
    return isinstance(wrapper, dict) and any(_are_documents(wrapper.get(key)) for key in WRAPPERS)


def _are_documents(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_document, value))


def _is_document(item: Any) -> bool:
    return isinstance(item, dict) and any(item.get(key) for key in (*CONTENTS, *URLS))


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def visible_fields(item: Mapping[str, Any], left_out: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a document that are worth showing, as text.

    Empty fields are not. Beside a text neither are lists and objects, nor fields that repeat
    others; their names are added to `left_out`.
    """
    fields = {key: field for key, field in item.items() if not _is_empty(field)}
    has_text = any(key in fields for key in CONTENTS)
    for key, value in fields.items():
        nested = isinstance(value, (list, dict)) and key not in CONTENTS
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
            next((part[key] for key in CONTENTS if isinstance(part.get(key), str)), None)
            if isinstance(part, dict)
            else part
            for part in value
        ]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    return json.dumps(value, ensure_ascii=False)
