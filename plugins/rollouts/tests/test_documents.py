"""What tools return, in the wrappers that they use, as documents."""

import json
from collections import Counter
from typing import Any

import pytest

from hf_rlhf_rollouts import Document
from hf_rlhf_rollouts.documents import documents_in_text

PAGE = {"title": "Amiga", "url": "http://a", "content": "Sold in 1999."}
READ = Document("Amiga", "url: http://a\nSold in 1999.")
KINDS = {"kind": "search", "context": {"a": 1}, "items": [PAGE]}


@pytest.mark.parametrize(
    ("output", "documents", "left_out"),
    [
        ("plain", [Document("", "plain")], []),
        ([PAGE, None], [READ], []),
        ({"results": json.dumps([PAGE])}, [READ], []),
        ({"query": "Amiga", "results": [PAGE], "took": 0.2}, [READ], ["query", "took"]),
        ({"query": "Amiga", "results": json.dumps([PAGE, PAGE])}, [READ, READ], ["query"]),
        (
            {"query": "Amiga", "answer": "1999", "results": [PAGE]},
            [READ, Document("", "answer: 1999")],
            ["query"],
        ),
        ({"search_results": json.dumps(KINDS)}, [READ], ["kind", "context"]),
        ({"status": "ok", "data": {"results": [PAGE]}}, [READ], ["status"]),
        (
            {"output": "text", "exit_code": 0},
            [Document("", "output: text\nexit_code: 0")],
            [],
        ),
        ({"query": "Amiga", "results": []}, [], ["query"]),
        ("[1, 2]", [Document("", "[1, 2]")], []),
    ],
)
def test_results_are_unwrapped(output: Any, documents: Any, left_out: list[str]) -> None:
    noted: Counter[str] = Counter()
    text = output if isinstance(output, str) else json.dumps(output)
    assert list(documents_in_text(text, noted)) == documents
    assert noted == Counter(f"document_fields_left_out.{name}" for name in left_out)


def test_a_document_shows_each_field_once_and_its_snippets_as_text() -> None:
    snippets = [{"snippetId": "s1", "text": "Sold."}, {"snippetId": "s2", "text": "In 1999."}]
    amiga = {"title": "Amiga & Co", "snippets": snippets, "score": 2}
    google = {
        "title": "Amiga & Co",
        "htmlTitle": "<b>Amiga</b> &amp; Co",
        "link": "http://a",
        "snippet": "Sold.",
        "pagemap": {"metatags": [{"og": 1}]},
        "mime": None,
    }
    record = {"name": "Acme", "address": {"city": "Bonn"}}
    noted: Counter[str] = Counter()
    assert list(documents_in_text(json.dumps([amiga, google, record]), noted)) == [
        Document("Amiga & Co", "score: 2\nSold.\nIn 1999."),
        Document("Amiga & Co", "link: http://a\nSold."),
        Document("Acme", 'address: {"city": "Bonn"}'),
    ]
    assert [name.rpartition(".")[2] for name in noted] == ["htmlTitle", "pagemap"]
