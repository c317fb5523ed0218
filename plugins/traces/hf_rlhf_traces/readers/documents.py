"""What a search or a tool returned, as documents: lists of objects, texts, JSON in texts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data import CONTENTS, SNIPPETS, TITLES, plain_text, result_items, visible_fields
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.rough import BadRow, Noted, first_held, kind_of, text_of
from hf_rlhf_traces.trace import Document

_NUMBERED = re.compile(
    r'^Doc\s*\d+\s*\(Title:\s*(?:"([^\n]*?)"|((?:[^()\n]|\([^()\n]*\))*))\)[ \t]*\n?',
    re.MULTILINE | re.IGNORECASE,
)


_SNIPPET = re.compile(
    r"<(snippet|webpage|document)(?:\s+id=[\"']?([^\"'<>\s]+)[\"']?)?[^<>]*>(.*?)</\1>", re.DOTALL
)
_INNER = re.compile(r"<(information|result)>(.*?)</\1>", re.DOTALL)
_TITLE = re.compile(r"\s*Title:[ \t]*([^\n]*)")


def documents_in(value: Any, path: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of a search result. Raises BadRow for what is none.

    Title and content are read; the names of other fields of a document are counted.
    """
    if value is None:
        noted["documents_missing"] += 1
        return ()
    if isinstance(value, str):
        return full([Document("", value)], noted)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        raise BadRow("content_not_text", f"{path} is {kind_of(value)}, expected a list")
    documents = [_document(item, f"{path}[{at}]", noted) for at, item in enumerate(value)]
    return full([item for item in documents if item is not None], noted)


def _document(item: Any, path: str, noted: Noted) -> Document | None:
    if item is None:
        noted["documents_null"] += 1
        return None
    if not isinstance(item, Mapping):
        return Document("", text_of(item, path, noted))
    title, content = first_held(item, TITLES), first_held(item, CONTENTS)
    for key in item:
        if key not in (title, content) and item[key] is not None:
            noted[f"document_fields_left_out.{key}"] += 1
    text = item.get(content)
    return Document(
        text_of(item.get(title), f"{path}.{title}", noted),
        text_of(plain_text(text) if content in SNIPPETS else text, f"{path}.{content}", noted),
    )


def documents_in_text(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of what a tool returned as text.

    JSON lists become a document each, with the fields beside title and content as lines, since the
    agent saw them; any other text is one document. What is left out is counted by its name.
    """
    items, left_out = result_items(text, lambda inner: json_in(inner, noted))
    if not all(isinstance(item, (dict, str)) for item in items):
        value = items[0] if len(items) == 1 else items
        return full([Document("", plain_text(value))], noted)
    documents = [_document_in_text(item, left_out) for item in items]
    noted.update(f"document_fields_left_out.{key}" for key in left_out)
    return full(documents, noted)


def _document_in_text(item: dict[str, Any] | str, left_out: list[str]) -> Document:
    if isinstance(item, str):
        return Document("", item)
    title, content = first_held(item, TITLES), first_held(item, CONTENTS)
    fields = dict(visible_fields(item, left_out))
    lines = [f"{key}: {text}" for key, text in fields.items() if key not in (title, content)]
    body = [fields[content]] if content in fields else []
    return Document(fields.get(title, ""), "\n".join([*lines, *body]))


def documents_tagged(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents within a result's tag.

    `<snippet id=s1>` blocks (DR Tulu) keep their id as a line, since answers cite it;
    `Doc 1(Title: "T") text` blocks (Search-R1) are parted at their numbers; JSON and any other text
    are read as what a tool returned.
    """
    if inner := list(_INNER.finditer(text)):
        # A tool's answer around its results, which may say something beside them.
        documents = [document for match in inner for document in documents_tagged(match[2], noted)]
        around = _INNER.sub("", text).strip()
        return (*documents, *([Document("", around)] if around else []))
    if snippets := list(_SNIPPET.finditer(text)):
        documents = [_snippet(match[2], match[3]) for match in snippets]
        around = _SNIPPET.sub("", text).strip()
        return full([*documents, *([Document("", around)] if around else [])], noted)
    marks = list(_NUMBERED.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        return documents_in_text(text.strip(), noted)
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return tuple(
        Document((mark[1] or mark[2] or "").strip(), text[mark.end() : end].strip())
        for mark, end in zip(marks, ends, strict=True)
    )


def _snippet(name: str | None, text: str) -> Document:
    titled = _TITLE.match(text)
    content = (text[titled.end() :] if titled else text).strip()
    id_line = f"id: {name}\n" if name else ""
    return Document(titled[1].strip() if titled else "", f"{id_line}{content}")


def full(documents: Sequence[Document], noted: Noted) -> tuple[Document, ...]:
    """Return the documents that have a title or a text; the others are counted."""
    full_documents = tuple(
        [document for document in documents if document.title.strip() or document.content.strip()]
    )
    if len(full_documents) < len(documents):
        noted["documents_empty"] += len(documents) - len(full_documents)
    return full_documents
