"""Read the documents of a search or a tool: lists of objects, texts, JSON in texts.

Search tools return `{"results": […]}` with the query and bookkeeping, often as JSON text, sometimes
doubly encoded. A document has its text in a separate field or in a list of snippets.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf.data import BadRow, describe_value
from hf_rlhf_rollouts.cleaning import Noted, json_in
from hf_rlhf_rollouts.columns import first_present
from hf_rlhf_rollouts.content import scalar_text
from hf_rlhf_rollouts.steps import Document
from hf_rlhf_rollouts.tags import pairs, without_pairs

_TITLES = ("title", "name", "heading", "headline")
_SNIPPETS = ("snippets", "passages", "highlights")
"""Fields with a list of a document's texts."""
_TEXTS = ("content", "contents", "text", "snippet", "body", "passage", "page_content")
_CONTENTS = (*_TEXTS, *_SNIPPETS)
_URLS = ("url", "link", "href")
_WRAPPERS = (
    *("results", "result", "search_results", "documents", "output", "data", "items", "hits"),
    *("matches", "organic", "organic_results", "webPages", "passages", "content", "value"),
)
_REPEATING = ("html", "formattedUrl", "displayLink", "kind")
"""Prefixes of fields that repeat others, such as Google's `htmlSnippet`."""
_REQUEST = ("query", "queries", "q", "search_query", "kind", "status", "request_id")
"""Keys beside the results that repeat the request."""
_MAX_WRAPPERS = 5
_NUMBERED = re.compile(
    r'^Doc\s*\d+\s*\(Title:\s*+(?:"([^\n]*?)"|((?:[^()\n]|\([^()\n]*\))*))\)[ \t]*\n?',
    re.MULTILINE | re.IGNORECASE,
)
_SNIPPET = re.compile(
    r"<(snippet|webpage|document)(?:\s++id=[\"']?+([^\"'<>\s]++)[\"']?+)?+[^<>]*+>"
)
_INNER = re.compile(r"<(information|result)>")
_TITLE = re.compile(r"\s*Title:[ \t]*([^\n]*)")


def documents_in(value: Any, path: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of a search result, as `documents_in_text` does. Raises BadRow."""
    if value is None:
        noted["documents_missing"] += 1
        return ()
    values = [value] if isinstance(value, (str, Mapping)) else value
    if not isinstance(values, list):
        raise BadRow("content_not_text", f"{path} is {describe_value(value)}, expected a list")
    noted["documents_null"] += values.count(None)
    documents = [
        _document(each, noted)
        if isinstance(each, dict)
        else Document("", scalar_text(each, f"{path}[{at}]", noted))
        for at, each in enumerate(values)
        if each is not None
    ]
    return full(documents, noted)


def documents_in_text(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents in a tool's text output.

    Each object or text of a JSON list is a document; any other text is a single document. A
    document's fields other than title and content become lines, because the agent saw them. Empty
    fields are dropped; the names of lists, objects and repetitions beside a text are counted.
    """
    values = [value for value in _unwrap(text, noted) if value is not None]
    if all(isinstance(value, (dict, str)) for value in values):
        return full([_document(value, noted) for value in values], noted)
    return full([Document("", _plain_text(values[0] if len(values) == 1 else values))], noted)


def _document(value: dict[str, Any] | str, noted: Noted) -> Document:
    if isinstance(value, str):
        return Document("", value)
    fields = dict(_visible_fields(value, noted))
    title = fields.pop(first_present(value, _TITLES), "")
    content = fields.pop(first_present(value, _CONTENTS), "")
    lines = [f"{name}: {text}" for name, text in fields.items()]
    return Document(title, "\n".join([*lines, content] if content else lines))


def _unwrap(text: str, noted: Noted) -> list[Any]:
    """Return the results in a text; the names of the fields around them are counted.

    An object with a single wrapping key is unwrapped. An object with several keys is unwrapped if
    one of them is a list of documents; other texts, for example a summary, form another document.
    """
    beside: list[Any] = []
    value: Any = text
    for _ in range(_MAX_WRAPPERS):
        inner = json_in(value, noted) if isinstance(value, str) else value
        if isinstance(inner, dict):
            inner = _unwrapped(inner, beside, noted)
        if inner is value:
            break
        value = inner
    return [*(value if isinstance(value, list) else [value]), *beside]


def _unwrapped(wrapper: dict[str, Any], beside: list[Any], noted: Noted) -> Any:
    if len(wrapper) == 1:
        ((key, inner),) = wrapper.items()
        return inner if key in _WRAPPERS else wrapper
    for key in filter(wrapper.__contains__, _WRAPPERS):
        inner = wrapper[key]
        inner = json_in(inner, noted) if isinstance(inner, str) else inner
        rest = {
            name: value for name, value in wrapper.items() if name != key and not _is_empty(value)
        }
        texts = {
            name: value
            for name, value in rest.items()
            if isinstance(value, str) and name not in _REQUEST
        }
        deeper = inner if isinstance(inner, dict) else {}
        holds = any(_are_documents(each) for each in (inner, *map(deeper.get, _WRAPPERS)))
        if holds or (inner == [] and not texts):
            noted.update(f"document_fields_left_out.{name}" for name in rest if name not in texts)
            beside += [texts] if texts else []
            return inner
    return wrapper


def _are_documents(value: Any) -> bool:
    keys = (*_CONTENTS, *_URLS)
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(each, dict) and any(each.get(key) for key in keys) for each in value)
    )


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _visible_fields(values: Mapping[str, Any], noted: Noted) -> Iterator[tuple[str, str]]:
    fields = {key: value for key, value in values.items() if not _is_empty(value)}
    has_text = any(key in fields for key in _CONTENTS)
    for key, value in fields.items():
        nested = isinstance(value, (list, dict)) and key not in _CONTENTS
        if has_text and (nested or key.startswith(_REPEATING)):
            noted[f"document_fields_left_out.{key}"] += 1
        else:
            yield key, _plain_text(value)


def _plain_text(value: Any) -> str:
    """Return a value as text; a list of snippets becomes a line per text."""
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


def documents_tagged(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents within a result's tag.

    `<snippet id=s1>` blocks (DR Tulu) keep their id as a line, because answers cite it; `Doc
    1(Title: "T") text` blocks (Search-R1) are split at their numbers; JSON and any other text are
    read like a tool's text output.
    """
    # A tool's answer may have text around its results.
    if inner := list(pairs(_INNER, text)):
        documents = [
            document for pair in inner for document in documents_tagged(pair.inside, noted)
        ]
        return tuple(documents + _around(_INNER, text))
    if snippets := list(pairs(_SNIPPET, text)):
        documents = [_snippet(pair.opened[2], pair.inside) for pair in snippets]
        return full(documents + _around(_SNIPPET, text), noted)
    marks = list(_NUMBERED.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        return documents_in_text(text.strip(), noted)
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return tuple(
        Document((mark[1] or mark[2] or "").strip(), text[mark.end() : end].strip())
        for mark, end in zip(marks, ends, strict=True)
    )


def _around(results: re.Pattern[str], text: str) -> list[Document]:
    around = without_pairs(results, text).strip()
    return [Document("", around)] if around else []


def _snippet(name: str | None, text: str) -> Document:
    titled = _TITLE.match(text)
    content = (text[titled.end() :] if titled else text).strip()
    id_line = f"id: {name}\n" if name else ""
    return Document(titled[1].strip() if titled else "", f"{id_line}{content}")


def full(documents: Sequence[Document], noted: Noted) -> tuple[Document, ...]:
    """Return the documents with a title or a text; the rest are counted."""
    with_text = tuple([each for each in documents if each.title.strip() or each.content.strip()])
    if len(with_text) < len(documents):
        noted["documents_empty"] += len(documents) - len(with_text)
    return with_text
