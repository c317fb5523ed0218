"""Which answers are learned; those that are not are counted."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf_traces.command import command
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.trace import Answer, Reasoning, SearchResult

DOCUMENTS = [{"title": "T", "content": "text"}]


def row(number: int = 0, kind: str = "CorrectAnswer", **fields: Any) -> dict[str, Any]:
    steps = [
        {"type": "reasoning", "content": "I look."},
        {"type": "search", "query": "q"},
        {"type": "search_result", "documents": DOCUMENTS},
        {"type": "reasoning", "content": "So it is Ada."},
        {"type": kind, "content": "Ada"},
    ]
    return {"question": f"Who is {number}?", "trace": steps, **fields}


def read(values: Mapping[str, Any]) -> Read | Rejected | None:
    return read_row(values, "f:1", Options())


def test_a_column_that_occurs_twice_is_rejected_where_it_is_read() -> None:
    line = json.dumps(row(reward=0)).encode()[:-1] + b', "reward": 1}'
    assert isinstance(read_row(line, "f:1", Options()), Read)  # the column is not read
    twice = json.dumps(row()).encode()[:-1] + b', "question": "Another?"}'
    rejected = read_row(twice, "f:1", Options())
    assert isinstance(rejected, Rejected)
    assert rejected.detail == "the key 'question' occurs twice in one object"


WRONG_TYPES = ("IncorrectAnswer", "wrong_answer", "incorrect answer", "FailedAnswer")


@pytest.mark.parametrize("kind", WRONG_TYPES)
def test_an_answer_that_the_source_calls_wrong_is_none(kind: str) -> None:
    outcome = read(row(kind=kind))
    assert isinstance(outcome, Read)
    # The reasoning for it goes with it; the search before it is learned.
    assert isinstance(outcome.trace.steps[-1], SearchResult)
    assert not [step for step in outcome.trace.steps if isinstance(step, Answer)]
    assert Counter(map(type, outcome.trace.steps))[Reasoning] == 1
    assert outcome.noted["answers_wrong"] == 1
    lone = {**row(kind=kind), "trace": row(kind=kind)["trace"][-2:]}
    rejected = read(lone)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "answer_wrong"  # nothing else to learn


@pytest.mark.parametrize("kind", ["CorrectAnswer", "final_answer", "answer"])
def test_other_answers_are_learned(kind: str) -> None:
    outcome = read(row(kind=kind))
    assert isinstance(outcome, Read)
    assert outcome.trace.answer == "Ada"
    assert "answers_wrong" not in outcome.noted


def test_answers_that_are_left_out_are_counted_on_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(at, ("CorrectAnswer", "IncorrectAnswer")[at % 2], reward=at % 4) for at in range(8)]
    file, out = tmp_path / "t.jsonl", tmp_path / "d"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command(["build", str(file), "--out", str(out), "--workers", "1"]) == 0
    report = Store.open(out).report("build")
    assert report["answers"] == {"CorrectAnswer": 4}
    assert report["noted"]["answers_wrong"] == 4
    output = capsys.readouterr().out
    assert "answers_wrong" in output
    assert "answers that the source calls wrong" in " ".join(output.split())
