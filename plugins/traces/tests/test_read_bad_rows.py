"""What becomes of each kind of bad row, and that no row is unaccounted for."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_rlhf.errors import DataError
from hf_rlhf_rollouts import Answer, Document, Noted, Reasoning, Rollout, Search, SearchResult, Step
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row
from hf_rlhf_traces.tally import Tally

DOCS = Path(__file__).resolve().parents[3] / "docs/reference/traces-rejected.md"
THINK = {"type": "reasoning", "content": "Hm."}
LOOK = {"type": "search", "query": "a"}
FOUND = {"type": "search_result", "documents": [{"title": "A", "content": "b"}]}
ANSWER = {"type": "CorrectAnswer", "content": "c"}
GOOD = [THINK, LOOK, FOUND, ANSWER]


def row(*trace: Any, **fields: Any) -> bytes:
    return json.dumps({"question": "Who?", "trace": list(trace), **fields}).encode() + b"\n"


def of(line: bytes, **options: Any) -> Read | Rejected:
    return read_row(line, "t.jsonl:3", Options(**options))


def kept(line: bytes, **options: Any) -> tuple[tuple[Step, ...], Noted]:
    found = of(line, **options)
    assert isinstance(found, Read), found
    return found.trace.steps, +found.noted


BAD = {
    "cut off": (row(*GOOD)[:40], "not_json", "The line has no end"),
    "latin-1": ('{"question": "Caf\xe9"}\n'.encode("latin-1"), "not_utf8", "byte 0xe9 at byte 18"),
    "a list": (b"[1, 2]\n", "not_object", "a list"),
    "nested within": (row(*GOOD)[:-2] + b', "x": ' + b"[" * 900 + b"]" * 900 + b"}", "malf", ""),
    "misspelt trace": (
        b'{"question": "Who?", "traces": []}',
        "no_trace",
        "the row has: question, traces (did you mean 'traces'?). Expected search: `question` and a "
        "list `trace` of steps (in a table, as JSON text); responses: ",
    ),
    "empty trace": (row(), "no_trace", "0 steps"),
    "only unknown": (
        row({"type": "Thougt"}),
        "no_trace",
        "none of a known type with a text: Thougt",
    ),
    "misspelt question": (
        b'{"qestion": "Who?", "trace": [{"type": "search", "query": "a"}]}',
        "no_question",
        "the row has: qestion, trace (did you mean 'qestion'?). Expected a text in the last turn "
        "of the user before the agent's, or in question, problem, query, prompt",
    ),
    "blank question": (row(*GOOD, question=" \n"), "no_question", "`question` is ' \\n'"),
    "step a text": (row("Hm."), "step_not_object", "trace[0] is 'Hm.'"),
    "content an object": (
        row({"type": "reasoning", "content": {"a": 1}}),
        "content_not_text",
        "trace[0].content is an object",
    ),
    "a document that is a list": (
        row(LOOK, {"type": "search_result", "documents": [["b"]]}),
        "content_not_text",
        "trace[1].documents[0] is a list",
    ),
    "result first": (row(FOUND, *GOOD), "result_before_search", "step 1 answers no search"),
    "two answers": (row(*GOOD, {**ANSWER, "content": "d"}), "two_answers", "'c' and 'd'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_rejected_with_place_reason_and_beginning(name: str) -> None:
    line, reason, detail = BAD[name]
    found = of(line)
    assert isinstance(found, Rejected), found
    assert found.where == "t.jsonl:3"
    assert found.reason.startswith(reason)
    assert found.reason in REJECTED
    assert detail in found.detail
    assert found.row == line[:8_000].decode("utf-8", "replace").rstrip("\n")[:2_000]
    assert found.cut == (len(line) > 2_000)


SECOND = {**ANSWER, "content": "d"}
EMPTY: dict[str, Any] = {"type": "search_result"}
SEARCHED = [Reasoning("Hm."), Search("a"), SearchResult((Document("A", "b"),))]
C, D = Answer("c"), Answer("d")
KEPT: dict[str, tuple[list[Any], list[Step], dict[str, int]]] = {
    "without results": ([THINK, ANSWER], [Reasoning("Hm."), C], {"without_results": 1}),
    "it breaks off": (
        [*GOOD[:3], LOOK],
        [*SEARCHED, Search("a")],
        {"without_answer": 1, "searches_without_result": 1},
    ),
    "an answer in the middle": (
        [*GOOD, THINK, LOOK, FOUND, SECOND],
        [*SEARCHED, Reasoning("c"), *SEARCHED, D],
        {"answers_in_the_middle": 1},
    ),
    "without a result after the answer": (
        [*GOOD, THINK, LOOK],
        [*SEARCHED, C],
        {"reasoning_after_the_answer": 1, "searches_after_the_answer": 1},
    ),
    "it went on from the first of two answers": (
        [*GOOD, LOOK, SECOND, LOOK],
        [*SEARCHED, Reasoning("c"), Search("a"), D],
        {
            "answers_in_the_middle": 1,
            "searches_after_the_answer": 1,
            "searches_without_result": 1,
        },
    ),
    "the same answer twice": (
        [*GOOD, THINK, {**ANSWER, "content": " c"}],
        [*SEARCHED, C],
        {"answers_repeated": 1, "reasoning_after_the_answer": 1},
    ),
    "no documents": (
        [LOOK, EMPTY, ANSWER],
        [Search("a"), SearchResult(()), C],
        {"documents_missing": 1},
    ),
    "a number": (
        [*GOOD[1:3], {"type": "answer", "content": 42}],
        [*SEARCHED[1:], Answer("42", "answer")],
        {"numbers_as_text": 1},
    ),
    "empty query and reasoning": (
        [{"type": "reasoning"}, {"type": "search"}, FOUND, ANSWER],
        [Search(""), SEARCHED[2], C],
        {"reasoning_empty": 1, "searches_empty": 1},
    ),
    "half and control characters": (
        [{"type": "reasoning", "content": "a\ud83d b\x00\x1bc\td\u202e\u0627\x7f"}, *GOOD],
        [Reasoning("a\ufffd bc\td\u202e\u0627"), *SEARCHED, C],  # marks of direction are text
        {"half_characters": 1, "control_characters": 3},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_an_odd_trace_and_counted(name: str) -> None:
    trace, steps, counts = KEPT[name]
    assert kept(row(*trace)) == (tuple(steps), counts)


def test_documents_that_are_null_empty_or_huge() -> None:
    documents = [
        None,
        {"title": "", "content": None},
        {"title": "A", "content": "x" * 30, "url": ["u"]},
    ]
    documents.append({"title": "B" * 11, "content": "y"})
    steps, noted = kept(
        row(LOOK, {"type": "search_result", "documents": documents}, ANSWER), max_document_chars=10
    )
    assert steps[1] == SearchResult((Document("A", "x" * 10), Document("B" * 10, "y")))
    assert noted == {
        "document_fields_left_out.url": 1,
        "documents_null": 1,
        "documents_empty": 1,
        "documents_cut": 2,
        "characters_cut": 21,
    }


def test_raw_control_characters_and_nan_are_mended() -> None:
    line = row(*GOOD, question="a\tb", reward=float("nan")).replace(rb"\t", b"\t")
    found = of(line)
    assert isinstance(found, Read)
    assert found.trace.question == "a\tb"
    assert found.trace.fields == {}
    assert found.noted["not_a_number"] == 1


def test_json_in_a_tool_output_is_cleaned_too() -> None:
    said = json.dumps({"results": ["a\x00\ud83d"]})
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "content": said},
    ]
    steps, noted = kept(json.dumps({"messages": messages}).encode())
    assert steps[1] == SearchResult((Document("", "a\ufffd"),))
    assert noted["control_characters"] == noted["half_characters"] == 1


def test_repeated_rows_are_left_out_and_shared_ids_are_told_apart() -> None:
    tally = Tally(42, Path())
    same, other = row(*GOOD, id="a"), row(*GOOD[:3], id="a")
    ids = []
    for line in (same, same, other, other, row(*GOOD[1:]), row(*GOOD[1:])):
        found = tally.add(of(line))
        ids.append(found.id if isinstance(found, Read) else found.reason)
    assert ids[:2] == ["a", "duplicate"]
    assert ids[2].startswith("a~")
    assert ids[3] == "duplicate"
    assert len(ids[4]) == 32
    assert ids[5] == "duplicate"
    report = tally.report(0.5)
    assert report["rows"] == 6
    assert report["traces"] == 3
    assert report["rejected"] == {"duplicate": 3}
    assert report["noted"]["renamed"] == 1
    assert report["questions"] == {"train": 1, "validation": 0}


def test_too_many_rejected_rows_are_an_error_with_reasons_and_places() -> None:
    tally = Tally(42, Path())
    for line in [row(*GOOD)] * 3 + [row()] * 5 + [b"x"]:
        tally.add(of(line))
    tally.refuse_if_more(0.8)
    none = Tally(42, Path())
    none.add(of(b"x"))
    with pytest.raises(DataError) as raised:
        tally.refuse_if_more(0.1)
    with pytest.raises(DataError, match="1 of 1 rows are no traces:"):
        none.refuse_if_more(1)
    said = str(raised.value)
    assert said.startswith("6 of 9 rows are no traces, more than --max_rejected_share 0.1")
    assert "5 no_trace" in said
    assert said.count("t.jsonl:3: 0 steps") == 3


_LINES = st.one_of(
    st.sampled_from([line for line, _, _ in BAD.values()]),
    st.builds(lambda n: row(*GOOD, question=f"Who {n}?"), st.integers(0, 5)),
    st.builds(lambda n: row(*GOOD, question="Who?", id=n), st.integers(0, 2)),
    st.binary(min_size=1, max_size=30),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(_LINES, max_size=12))
def test_every_row_is_a_trace_or_rejected(lines: list[bytes]) -> None:
    tally = Tally(42, Path())
    found = [tally.add(of(line)) for line in lines]
    traces = [one for one in found if isinstance(one, Read)]
    report = tally.report(0.1)
    assert report["rows"] == len(lines)
    assert report["traces"] == len(traces) == sum(report["forms"].values())
    assert report["rows"] == report["traces"] + sum(report["rejected"].values())
    assert sum(report["split_traces"].values()) == report["traces"]
    assert len({one.id for one in traces}) == len(traces)
    assert all(isinstance(one.trace, Rollout) for one in traces)


def test_each_reason_and_note_is_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert not [name for name in (*REJECTED, *NOTED) if f"`{name}`" not in text]
