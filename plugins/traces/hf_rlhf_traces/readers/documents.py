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


def documents_in(found: Any, path: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of a search result. Raises BadRow for what is none.

    Title and content are read; the names of other fields of a document are counted.
    """
    if found is None:
        noted["documents_missing"] += 1
        return ()
    if isinstance(found, str):
        return full([Document("", found)], noted)
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, list):
        raise BadRow("content_not_text", f"{path} is {kind_of(found)}, expected a list")
    made = [_document(one, f"{path}[{at}]", noted) for at, one in enumerate(found)]
    return full([one for one in made if one is not None], noted)


def _document(one: Any, path: str, noted: Noted) -> Document | None:
    if one is None:
        noted["documents_null"] += 1
        return None
    if not isinstance(one, Mapping):
        return Document("", text_of(one, path, noted))
    title, content = first_held(one, TITLES), first_held(one, CONTENTS)
    for key in one:
        if key not in (title, content) and one[key] is not None:
            noted[f"document_fields_left_out.{key}"] += 1
    text = one.get(content)
    return Document(
        text_of(one.get(title), f"{path}.{title}", noted),
        text_of(plain_text(text) if content in SNIPPETS else text, f"{path}.{content}", noted),
    )


def documents_said(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents of what a tool returned as text.

    JSON lists become a document each, with the fields beside title and content as lines, since the
    agent saw them; any other text is one document. What is left out is counted by its name.
    """
    items, left_out = result_items(text, lambda inner: json_in(inner, noted))
    if not all(isinstance(one, (dict, str)) for one in items):
        value = items[0] if len(items) == 1 else items
        return full([Document("", plain_text(value))], noted)
    documents = [_seen(one, left_out) for one in items]
    noted.update(f"document_fields_left_out.{key}" for key in left_out)
    return full(documents, noted)


def _seen(one: dict[str, Any] | str, left_out: list[str]) -> Document:
    if isinstance(one, str):
        return Document("", one)
    title, content = first_held(one, TITLES), first_held(one, CONTENTS)
    fields = dict(visible_fields(one, left_out))
    shown = [f"{key}: {text}" for key, text in fields.items() if key not in (title, content)]
    body = [fields[content]] if content in fields else []
    return Document(fields.get(title, ""), "\n".join([*shown, *body]))


def documents_tagged(text: str, noted: Noted) -> tuple[Document, ...]:
    """Return the documents within a result's tag.

    `<snippet id=s1>` blocks (DR Tulu) keep their id as a line, since answers cite it;
    `Doc 1(Title: "T") text` blocks (Search-R1) are parted at their numbers; JSON and any other text
    are read as what a tool returned.
    """
    if inner := list(_INNER.finditer(text)):
        # A tool's answer around its results, which may say something beside them.
        found = [document for one in inner for document in documents_tagged(one[2], noted)]
        around = _INNER.sub("", text).strip()
        return (*found, *([Document("", around)] if around else []))
    if snippets := list(_SNIPPET.finditer(text)):
        found = [_snippet(one[2], one[3]) for one in snippets]
        around = _SNIPPET.sub("", text).strip()
        return full([*found, *([Document("", around)] if around else [])], noted)
    marks = list(_NUMBERED.finditer(text))
    if not marks or text[: marks[0].start()].strip():
        return documents_said(text.strip(), noted)
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    return tuple(
        Document((mark[1] or mark[2] or "").strip(), text[mark.end() : end].strip())
        for mark, end in zip(marks, ends, strict=True)
    )


def _snippet(name: str | None, text: str) -> Document:
    titled = _TITLE.match(text)
    content = (text[titled.end() :] if titled else text).strip()
    named = f"id: {name}\n" if name else ""
    return Document(titled[1].strip() if titled else "", f"{named}{content}")


def full(found: Sequence[Document], noted: Noted) -> tuple[Document, ...]:
    """Return the documents that have a title or a text; the others are counted."""
    kept = tuple([one for one in found if one.title.strip() or one.content.strip()])
    if len(kept) < len(found):
        noted["documents_empty"] += len(found) - len(kept)
    return kept
