"""Messages in Anthropic's blocks and in ShareGPT's form; smolagents' dumps are rejected.

The shapes are those of the references in the readers, written here by hand.
"""

import json
from typing import Any

import pytest

from hf_rlhf_rollouts import Answer, Document, Reasoning, Search, SearchResult, Step, Unknown
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row

QUESTION = "Where is Paris?"
FOUND = SearchResult((Document("", "In France."),))
ANSWER = Answer("France", "answer")


def taken(values: dict[str, Any]) -> Read | Rejected:
    return read_row(json.dumps(values).encode() + b"\n", "t.jsonl:1", Options())


def read(values: dict[str, Any]) -> Read:
    found = taken(values)
    assert isinstance(found, Read), found
    assert (found.form, found.trace.question) == ("chat", QUESTION)
    return found


def refused(values: dict[str, Any]) -> tuple[str, str]:
    found = taken(values)
    assert isinstance(found, Rejected), found
    return found.reason, found.detail


def sharegpt(*turns: tuple[str, Any]) -> dict[str, Any]:
    asked = [("system", "You search."), ("human", QUESTION)]
    said = [{"from": who, "value": value} for who, value in (*asked, *turns)]
    return {"conversations": said, "tools": "[]"}


def test_llama_factorys_calls_and_observations() -> None:
    call = {"name": "search", "arguments": {"query": "Paris"}}
    row = sharegpt(
        ("gpt", "I look."),
        ("function_call", json.dumps(call)),
        ("observation", '[{"title": "Paris", "content": "In France."}]'),
        ("function_call", "<think>Again.</think>" + json.dumps([call, {"name": "time"}])),
        ("observation", "In France."),
        ("gpt", "<think>Found.</think>France"),
    )
    found = read(row)
    assert found.trace.steps == (
        Reasoning("I look."),
        Search("Paris"),
        SearchResult((Document("Paris", "In France."),)),
        Reasoning("Again."),
        Search("Paris"),
        Search("{}", "time"),
        FOUND,
        Reasoning("Found."),
        ANSWER,
    )
    before = [{"role": "system", "content": "You search."}, {"role": "user", "content": QUESTION}]
    assert found.trace.fields == {"tools": "[]", "input": before}
    assert +found.noted == {"searches_without_result": 1}


@pytest.mark.parametrize("names", [("tool_call", "tool_response"), ("function_call", "tool")])
def test_other_names_for_the_same_roles(names: tuple[str, str]) -> None:
    call = {"name": "search", "arguments": '{"query": "Paris"}'}
    row = sharegpt((names[0], json.dumps(call)), (names[1], "In France."), ("gpt", "France"))
    assert read(row).trace.steps == (Search("Paris"), FOUND, ANSWER)
    messages = [{"role": one["from"], "content": one["value"]} for one in row["conversations"]]
    assert read({"messages": messages}).trace.steps == (Search("Paris"), FOUND, ANSWER)


@pytest.mark.parametrize("said", ["search(Paris)", "[]", "", "<function=search>", '["search"]'])
def test_a_call_that_is_none_is_named(said: str) -> None:
    reason, detail = refused(sharegpt(("function_call", said), ("observation", "x")))
    assert reason == "malformed"
    assert "conversations[2] is a call, expected JSON with `name` and `arguments`" in detail


HERMES_CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Paris"}}\n</tool_call>'
HERMES_FOUND = "<tool_response>\nIn France.\n</tool_response>"


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ("France", (ANSWER,)),
        ("<think>Found.</think>\n\nFrance", (Reasoning("Found."), ANSWER)),
        ("Found.</think>\n\nFrance", (Reasoning("Found."), ANSWER)),
        ("<think>France</think>", (Reasoning("France"),)),
        (f"{HERMES_CALL}France", (Search("Paris"), Reasoning("France"))),
    ],
)
def test_hermes_last_plain_text_is_the_answer(said: str, ends: tuple[Step, ...]) -> None:
    row = sharegpt(("gpt", f"I look.{HERMES_CALL}"), ("tool", HERMES_FOUND), ("gpt", said))
    turns = (QUESTION, f"I look.{HERMES_CALL}", HERMES_FOUND, said)
    roles = ("user", "assistant") * 2
    messages = [{"role": w, "content": c} for w, c in zip(roles, turns, strict=True)]
    for one in (row, {"messages": messages}):
        found = taken(one)
        assert isinstance(found, Read)
        assert found.form == "tagged"
        assert found.trace.steps == (Reasoning("I look."), Search("Paris"), FOUND, *ends)


def use(number: int, query: str, kind: str = "tool_use") -> dict[str, Any]:
    return {"type": kind, "id": f"t{number}", "name": "search", "input": {"query": query}}


def result(number: int, content: Any, kind: str = "tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": f"t{number}", "content": content}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def anthropic(*turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row in which the agent and the user (who hands over results) take turns."""
    said: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for at, content in enumerate(turns):
        said.append({"role": "user" if at % 2 else "assistant", "content": content})
    return {"system": "You search.", "messages": said}


def test_blocks_of_an_agent_with_parallel_tools() -> None:
    thought = {"type": "thinking", "thinking": "I look.", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "x"}
    page = {"type": "search_result", "source": "http://p", "title": "Paris"}
    found = read(
        anthropic(
            [thought, hidden, text("Both."), use(1, "Paris"), use(2, "France")],
            [result(2, [{**page, "content": [text("In"), text("France.")]}]), result(1, "None.")],
            [text("Fra", citations=[{"cited_text": "In"}]), text("nce")],
        )
    )
    assert found.trace.steps == (
        Reasoning("I look."),
        Reasoning("Both."),
        Search("Paris"),
        Search("France"),
        SearchResult((Document("", "None."),)),
        SearchResult((Document("Paris", "source: http://p\nIn\nFrance."),)),
        ANSWER,
    )
    assert +found.noted == {"hidden_reasoning": 1, "results_reordered": 1}
    assert found.trace.fields == {"system": "You search."}


def test_tools_of_the_server_are_called_and_answer_in_one_turn() -> None:
    page = {
        "type": "web_search_result",
        "url": "http://p",
        "title": "Paris",
        "encrypted_content": "x",
        "page_age": None,
    }
    fetched = {
        "type": "web_fetch_result",
        "url": "http://p",
        "content": {
            "type": "document",
            "title": "Paris",
            "source": {"type": "text", "media_type": "text/plain", "data": "In France."},
        },
    }
    error = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    found = read(
        anthropic(
            [
                text("I look."),
                use(1, "Paris", "server_tool_use"),
                result(1, [page], "web_search_tool_result"),
                use(2, "Paris", "server_tool_use"),
                result(2, fetched, "web_fetch_tool_result"),
                use(3, "Paris", "server_tool_use"),
                result(3, error, "web_search_tool_result"),
                text("France"),
            ]
        )
    )
    results = [step for step in found.trace.steps if isinstance(step, SearchResult)]
    assert [one.documents for one in results] == [
        (Document("Paris", "url: http://p"),),
        (Document("Paris", "url: http://p\nIn France."),),
        (Document("", "type: web_search_tool_result_error\nerror_code: max_uses_exceeded"),),
    ]
    assert found.trace.steps[0] == Reasoning("I look.")
    assert found.trace.steps[-1] == ANSWER
    assert +found.noted == {"document_fields_left_out.encrypted_content": 1}


def test_blocks_that_are_not_read_are_kept_in_their_places() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "x"}}
    unknown = Unknown("part image", {"part": image})
    row = anthropic([image, use(1, "Paris")], [result(1, [text("In France."), image])])
    row["messages"][0]["content"] = [text(QUESTION), image]
    found = read(row)
    assert found.trace.steps == (unknown, unknown, Search("Paris"), FOUND, unknown)
    assert found.types.count(("unknown", "part image")) == 3


@pytest.mark.parametrize(
    ("thought", "call"),
    [
        ({"type": "thinking", "thinking": "I look."}, use(1, "Paris")),
        ({"type": "reasoning", "reasoning": "I look."}, use(1, "Paris", "tool_call")),
        ({"type": "reasoning", "text": "I look."}, {**use(1, ""), "type": "tool_call"}),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
            {"type": "function_call", "id": "fc", "call_id": "t1", "name": "x", "arguments": "{}"},
        ),
    ],
)
def test_calls_that_langchain_tells_twice_are_one(
    thought: dict[str, Any], call: dict[str, Any]
) -> None:
    row = anthropic([thought, call], [result(1, "In France.")])
    row["messages"][1]["tool_calls"] = [{"name": "search", "args": {"query": "Paris"}, "id": "t1"}]
    assert read(row).trace.steps == (Reasoning("I look."), Search("Paris"), FOUND)


def test_what_breaks_the_rules_of_blocks_is_rejected_with_its_place() -> None:
    call, back = [use(1, "Paris")], result(1, "x")
    for turns, reason, said in (
        ([[text("I look.")], [back]], "result_before_search", "answers no call"),
        ([call, [result(7, "x")]], "result_before_search", "answers no call"),
        ([call, [back, text("Answer now.")]], "", ""),
        (
            [call, [back], [text("France.")], [text("And Rome?")]],
            "user_turn_in_the_middle",
            "first turn: And Rome?",
        ),
        ([[{"type": "tool_use", "id": "a"}]], "malformed", "messages[1].content[0] names no"),
        ([call, [result(1, 7), {"type": "x"}]], "", ""),
    ):
        found = taken(anthropic(*turns))
        assert (found.reason if isinstance(found, Rejected) else "") == reason
        assert said in (found.detail if isinstance(found, Rejected) else "")
