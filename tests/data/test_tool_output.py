"""What tools return, in the wrappers that they use, as documents with their fields."""

import json
from typing import Any

import pytest

from hf_rlhf.data.tool_output import tool_documents

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
def test_results_are_unwrapped(output: Any, items: Any, left_out: list[str]) -> None:
    text = output if isinstance(output, str) else json.dumps(output)
    documents, names = tool_documents(text)
    expected = [output] if items is None else items
    assert [dict(one.fields) or one.content for one in documents] == [
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in one.items()}
        if isinstance(one, dict)
        else one
        for one in expected
    ]
    assert names == left_out


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
    documents, left_out = tool_documents(json.dumps([amiga, google, record, None]))
    assert [(one.title, one.content) for one in documents] == [
        ("Amiga & Co", "Sold.\nIn 1999."),
        ("Amiga & Co", "Sold."),
        ("Acme", ""),
    ]
    assert [list(one.fields) for one in documents] == [
        ["title", "snippets", "score"],
        ["title", "link", "snippet"],
        ["name", "address"],
    ]
    assert documents[2].fields["address"] == '{"city": "Bonn"}'
    assert left_out == ["htmlTitle", "pagemap"]


def test_a_list_of_numbers_is_one_document() -> None:
    assert tool_documents("[1, 2]")[0][0].content == "[1, 2]"
