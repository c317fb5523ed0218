"""Which rows are read by their fields and answers, and which answers are learned: all counted."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import ConfigError, DataError
from hf_rlhf_traces.command import command
from hf_rlhf_traces.reading import Options, Read, Rejected, read_line, read_values
from hf_rlhf_traces.reconciliation import accounts
from hf_rlhf_traces.selection import condition
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


def read(values: Mapping[str, Any], **options: Any) -> Read | Rejected:
    return read_values(values, "f:1", Options(**options))


def reason(values: Mapping[str, Any], **options: Any) -> str:
    found = read(values, **options)
    return found.reason if isinstance(found, Rejected) else ""


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("reward>=1", {"reward": 1}, ""),
        ("reward >= 1", {"reward": 1.0}, ""),
        ("reward>=1", {"reward": "1.0"}, ""),  # of a table
        ("reward>=1", {"reward": 0.5}, "filtered"),
        ("reward>1", {"reward": 1}, "filtered"),
        ("reward<=-0.5", {"reward": -1}, ""),
        ("reward<1", {"reward": 1}, "filtered"),
        ("reward!=1", {"reward": 1}, "filtered"),
        ("good==true", {"good": True}, ""),
        ("good=true", {"good": False}, "filtered"),
        ("good==1", {"good": "true"}, ""),
        ("verdict==good", {"verdict": "good"}, ""),
        ("verdict!=good", {"verdict": "bad"}, ""),
        ("verdict==good one", {"verdict": "good one"}, ""),
        ("judge.score>3", {"judge": {"score": 4}}, ""),
        ("judge.score>3", {"judge": {"score": 2}}, "filtered"),
        ("judge.score>3", {"judge.score": 2}, "filtered"),  # a column of a table
        ("verdict!='bad'", {"verdict": "bad"}, "filtered"),
        ('verdict=="so so"', {"verdict": "so so"}, ""),
        ("verdict!=nan", {"verdict": "nan"}, "filtered"),
        ("reward>=1", {"reward": "nan"}, "field_missing"),
        ("reward>=1", {}, "field_missing"),
        ("reward>=1", {"reward": None}, "field_missing"),
        ("reward>=1", {"reward": "high"}, "field_missing"),
        ("reward==1", {"reward": [1]}, "field_missing"),
        ("reward>=1", {"reward": float("nan")}, "field_missing"),
    ],
)
def test_a_condition_is_a_comparison_of_a_field(
    text: str, fields: dict[str, Any], expected: str
) -> None:
    assert reason(row(**fields), where=(text,)) == expected


@pytest.mark.parametrize(
    "text", ["reward", "reward>=", ">=1", "__import__('os')", "a b>=1", "a>b", "a!==1", "a=>1"]
)
def test_what_is_no_comparison_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--where"):
        condition(text)
    with pytest.raises(SystemExit):
        command(["read", "t.jsonl", "--out", str(tmp_path / "d"), "--where", text])
    assert "argument --where" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_column_that_occurs_twice_is_rejected_where_it_is_read() -> None:
    line = json.dumps(row(reward=0)).encode()[:-1] + b', "reward": 1}'
    read = read_line(line, "f:1", Options(where=("reward>=1",)))
    assert isinstance(read, Rejected)
    assert (read.reason, read.detail) == (
        "malformed",
        "the key 'reward' occurs twice in one object",
    )
    assert isinstance(read_line(line, "f:1", Options()), Read)  # nobody compares it
    twice = json.dumps(row()).encode()[:-1] + b', "question": "Another?"}'
    assert isinstance(read_line(twice, "f:1", Options()), Rejected)


def test_all_conditions_must_hold() -> None:
    both = ("reward>=1", "split==train")
    assert reason(row(reward=1, split="train"), where=both) == ""
    assert reason(row(reward=1, split="test"), where=both) == "filtered"


WRONG_TYPES = ("IncorrectAnswer", "wrong_answer", "incorrect answer", "FailedAnswer")


@pytest.mark.parametrize("kind", WRONG_TYPES)
def test_an_answer_that_the_source_calls_wrong_is_none(kind: str) -> None:
    found = read(row(kind=kind))
    assert isinstance(found, Read)
    # The reasoning for it goes with it; the search before it is learned.
    assert isinstance(found.trace.steps[-1], SearchResult)
    assert not [one for one in found.trace.steps if isinstance(one, Answer)]
    assert Counter(map(type, found.trace.steps))[Reasoning] == 1
    assert found.noted["answers_wrong"] == 1
    every = read(row(kind=kind), answers="all")
    assert isinstance(every, Read)
    assert every.trace.answer == "Ada"
    assert reason(row(kind=kind), answers="correct") == "answer_wrong"
    lone = {**row(kind=kind), "trace": row(kind=kind)["trace"][-2:]}
    assert reason(lone) == "answer_wrong"  # nothing else to learn


@pytest.mark.parametrize("kind", ["CorrectAnswer", "final_answer", "answer"])
def test_other_answers_are_learned(kind: str) -> None:
    found = read(row(kind=kind))
    assert isinstance(found, Read)
    assert found.trace.answer == "Ada"
    assert "answers_wrong" not in found.noted


CHAT = {"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada"}]}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (row(), ""),
        (row(kind="final_answer"), "answer_unjudged"),
        (row(kind="final_answer", expected_answer="ADA."), ""),
        (row(kind="final_answer", expected_answer=["b", "Ada"]), ""),
        (row(kind="final_answer", expected_answer="b"), "answer_wrong"),
        (row(kind="final_answer", expected_answer=0), "answer_wrong"),
        (row(kind="PartiallyCorrectAnswer"), "answer_unjudged"),
        (CHAT, "answer_unjudged"),  # nobody has called this answer correct
        ({**CHAT, "expected_answer": "Ada"}, ""),
        ({**row(), "trace": row()["trace"][:3]}, "answer_unjudged"),
    ],
)
def test_only_answers_that_are_known_to_be_correct_are_kept(
    values: dict[str, Any], expected: str
) -> None:
    assert reason(values, answers="correct") == expected


def read_file(
    folder: Path, rows: Sequence[Mapping[str, Any]], *options: str, out: str = "d"
) -> Store:
    file = folder / "t.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert command(["read", str(file), "--out", str(folder / out), *options]) == 0
    return Store.open(folder / out)


def test_what_is_left_out_is_counted_on_the_console_and_adds_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(at, ("CorrectAnswer", "IncorrectAnswer")[at % 2], reward=at % 4) for at in range(8)]
    report = read_file(tmp_path, rows).report("read")
    assert report["answers"] == {"CorrectAnswer": 4}
    assert report["noted"]["answers_wrong"] == 4
    shown = capsys.readouterr().out
    assert "answers_wrong" in shown
    assert "answers that the source calls wrong" in " ".join(shown.split())
    chosen = read_file(tmp_path, rows, "--where", "reward>=1", "--answers", "correct", out="e")
    found = chosen.report("read")
    assert (found["traces"], found["rejected"]) == (2, {"answer_wrong": 4, "filtered": 2})
    shown = capsys.readouterr().out
    assert "rejected: filtered" in shown
    assert "rejected: answer_wrong" in shown
    accounts(chosen)
    assert chosen.settings("read")["where"] == ["reward>=1"]


def test_a_misspelt_field_is_refused_with_the_nearest(tmp_path: Path) -> None:
    rows = [row(at, reward=1) for at in range(3)]
    with pytest.raises(
        DataError, match=r"no field 'rewrd' \(did you mean 'reward'\?\)(.|\n)*--where"
    ):
        read_file(tmp_path, rows, "--where", "rewrd>=1")


def test_a_filter_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    rows = [row(at, reward=0) for at in range(3)]
    with pytest.raises(DataError, match=r"None of 3 rows is left:\n  3 filtered(.|\n)*--where"):
        read_file(tmp_path, rows, "--where", "reward>=1")


def test_a_thousand_filtered_rows_are_no_reason_to_give_up_a_file(tmp_path: Path) -> None:
    rows = [row(at, reward=at // 1_000) for at in range(1_002)]
    report = read_file(tmp_path, rows, "--where", "reward>=1").report("read")
    assert (report["rows"], report["traces"]) == (1_002, 2)
