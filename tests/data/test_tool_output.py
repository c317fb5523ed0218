"""What tools return, in the wrappers that they use, as documents with their fields."""

import json
from typing import Any

import pytest

from hf_rlhf.data.tool_output import result_items, visible_fields

PAGE = {"title": "Amiga", "url": "http://a", "content": "Sold in 1999."}


@pytest.mark.parametrize(
    ("output", "items", "left_out"),
    [
        ("plain", ["plain"], []),
        ([PAGE], [PAGE], []),
        ({"results": json.dumps([PAGE])}, [PAGE], []),
        ({"query": "Amiga", "results": [PAGE, PAGE]}, [PAGE, PAGE], ["query"]),
        ({"query": "Amiga", "results": json.dumps([PAGE, PAGE])}, [PAGE, PAGE], ["query"]),
        ({"query": "Amiga", "results": [PAGE], "took": 0.2}, [PAGE], ["query", "took"]),
        (
            {"query": "Amiga", "answer": "1999", "results": [PAGE]},
            [PAGE, {"answer": "1999"}],
            ["query"],
        ),
        (
            {
                "search_results": json.dumps(
                    {"kind": "search", "context": {"a": 1}, "items": [PAGE]}
                )
            },
            [PAGE],
            ["kind", "context"],
        ),
        ({"status": "ok", "data": {"results": [PAGE]}}, [PAGE], ["status"]),
        ({"output": "text", "exit_code": 0}, [{"output": "text", "exit_code": 0}], []),
        ({"order": "7", "items": [{"sku": 1, "name": "x"}]}, None, []),
        ({"query": "Amiga", "results": []}, [], ["query"]),
    ],
)
def test_what_was_found_is_unwrapped(output: Any, items: Any, left_out: list[str]) -> None:
    text = output if isinstance(output, str) else json.dumps(output)
    assert result_items(text) == ([output] if items is None else items, left_out)


def test_a_document_shows_each_field_once_and_its_snippets_as_text() -> None:
    left_out: list[str] = []
    snippets = [{"snippetId": "s1", "text": "Sold."}, {"snippetId": "s2", "text": "In 1999."}]
    found = {"title": "Amiga & Co", "snippets": snippets, "score": 2}
    assert dict(visible_fields(found, left_out)) == {
        "title": "Amiga & Co",
        "snippets": "Sold.\nIn 1999.",
        "score": "2",
    }
    google = {
        "title": "Amiga & Co",
        "htmlTitle": "<b>Amiga</b> &amp; Co",
        "link": "http://a",
        "snippet": "Sold.",
        "pagemap": {"metatags": [{"og": 1}]},
        "mime": None,
    }
    assert list(dict(visible_fields(google, left_out))) == ["title", "link", "snippet"]
    assert left_out == ["htmlTitle", "pagemap"]
    record = {"name": "Acme", "address": {"city": "Bonn"}}
    assert dict(visible_fields(record, left_out))["address"] == '{"city": "Bonn"}'
