"""The documents that a search or a tool returned: lists of objects, texts, JSON in texts."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.data import (
    BadRow,
    ToolDocument,
    describe_value,
    scalar_text,
    tool_documents,
)
from hf_rlhf_traces.readers.clean import json_in
from hf_rlhf_traces.readers.raw_trace import Noted
from hf_rlhf_traces.tags import pairs, without_pairs
from hf_rlhf_traces.trace import Document

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
        raise BadRow("content_not_text", f"{path} is {describe_value(value)}, expected a list")
    documents = [_document(entry, f"{path}[{at}]", noted) for at, entry in enumerate(value)]
    return full([document for document in documents if document is not None], noted)


def _document(entry: Any, path: str, noted: Noted) -> Document | None:
    if entry is None:
        noted["documents_null"] += 1
        return None
    if not isinstance(entry, Mapping):
        return Document("", scalar_text(entry, path, noted))
    fields = ToolDocument.title_and_content(entry)
    for key in entry:
        if key not in fields and entry[key] is not None:
            noted[f"document_fields_left_out.{key}"] += 1
    title, content = (scalar_text(text, f"{path}.{key}", noted) for key, text in fields.items())
    return Document(title, content)


def documents_in_text(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of what a tool returned as text.

    Fields of a document beside title and content become lines, since the agent saw them. Fields
    that are left out are counted by their names.
    """
    documents, left_out = tool_documents(text, lambda inner: json_in(inner, noted))
    noted.update(f"document_fields_left_out.{key}" for key in left_out)
    return full([Document(each.title, _with_fields(each)) for each in documents], noted)


def _with_fields(document: ToolDocument) -> str:
    main = (document.title_field, document.content_field)
    lines = [f"{name}: {text}" for name, text in document.fields.items() if name not in main]
    return "\n".join([*lines, document.content] if document.content else lines)


def documents_tagged(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents within a result's tag.

    `<snippet id=s1>` blocks (DR Tulu) keep their id as a line, since answers cite it;
    `Doc 1(Title: "T") text` blocks (Search-R1) are parted at their numbers; JSON and any other text
    are read as what a tool returned.
    """
    # A tool's answer may say something around its results.
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
    """Return the documents that have a title or a text; the others are counted."""
    with_text = tuple([each for each in documents if each.title.strip() or each.content.strip()])
    if len(with_text) < len(documents):
        noted["documents_empty"] += len(documents) - len(with_text)
    return with_text
