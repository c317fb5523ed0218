"""Traces that an evaluation file gives away are rejected, each with the row that it is."""

import json
from pathlib import Path
from typing import Any

import pytest

from hf_rlhf.errors import DataError
from hf_rlhf.testing.rows import write_rows
from hf_rlhf_traces.command import command
from hf_rlhf_traces.dataset_card import render
from hf_rlhf_traces.decontamination import COMMON, EvaluationSet, evaluation_set
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.trace import Answer, Trace

LONG = "In which year did the elder brother of the painter of the old harbour leave for Lisbon"


@pytest.fixture
def evaluation(tmp_path: Path) -> Any:
    def make(*rows: dict[str, Any]) -> EvaluationSet:
        evaluation_set.cache_clear()
        return evaluation_set(write_rows(tmp_path, rows, "eval.jsonl"))

    return make


def asking(question: str, *answers: str) -> Trace:
    return Trace("t", question, tuple(map(Answer, answers)))


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ("Who is Kira?", True),
        ("  who  is KIRA", True),
        ("Who is «Ｋira»!", True),
        ("Who is Kira's brother?", False),
        ("Who is Mira?", False),
    ],
)
def test_a_question_is_known_however_it_is_written(
    evaluation: Any, question: str, found: bool
) -> None:
    match = evaluation({"question": "Who is Kira?"}).match(asking(question))
    assert (match is not None) is found
    assert match is None or match.endswith("eval.jsonl:1")


def test_thirteen_words_in_a_row_are_enough_and_twelve_are_not(evaluation: Any) -> None:
    known = evaluation({"question": "Something else?"}, {"problem": f"{LONG}, and why?"})
    words = LONG.split()
    twelve, thirteen = (" ".join(words[2 : 2 + count]) for count in (12, 13))
    assert known.match(asking(f"Tell me: {twelve}?")) is None
    said = known.match(asking(f"Tell me: {thirteen.upper()}?"))
    assert said.startswith("13 words of the question stand in ")
    assert "eval.jsonl:2: 'year did the elder" in said
    assert known.match(asking("Tell me?", f"It was {thirteen}.")).startswith(
        "13 words of the answer"
    )


def test_answers_and_messages_of_the_evaluation_are_looked_at(evaluation: Any) -> None:
    known = evaluation(
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Who?"},
            ]
        },
        {"question": "And?", "answers": [LONG]},
    )
    assert known.match(asking("who")) is not None
    assert known.match(asking("be brief")) is None
    assert known.match(asking("Other?", LONG)) is not None


def test_wording_that_many_rows_share_is_not_their_content(evaluation: Any) -> None:
    rows = [{"question": f"{LONG}: case {number}?"} for number in range(COMMON + 1)]
    assert evaluation(*rows).match(asking(f"{LONG}: case 99?")) is None
    assert evaluation(*rows).match(asking(f"{LONG}: case 3?")) is not None
    assert evaluation(*rows[:COMMON]).match(asking(f"{LONG}: case 99?")) is not None


def test_a_row_without_a_question_is_an_error(evaluation: Any) -> None:
    with pytest.raises(DataError, match=r"eval\.jsonl:2: has no question.*it has title"):
        evaluation({"question": "Who?"}, {"title": "x"})


def test_read_rejects_them_and_the_card_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(question: str) -> str:
        return json.dumps({"question": question, "trace": [{"type": "answer", "content": "x"}]})

    raw, held = tmp_path / "raw.jsonl", tmp_path / "held.jsonl"
    raw.write_text("\n".join(map(row, ["One?", "Two?", "Three?", "Four?"])) + "\n")
    held.write_text(json.dumps({"question": "two"}) + "\n")
    read = ["read", str(raw), "--out", str(tmp_path / "s"), "--decontaminate", str(held)]
    command(read)
    store = Store.open(tmp_path / "s")
    report = store.report("read")
    assert (report["rows"], report["traces"]) == (4, 3)
    assert report["rejected"] == {"contaminated": 1}
    rejected = json.loads((store.folder / "rejects.jsonl").read_text())
    assert rejected["where"].endswith("raw.jsonl:2")
    assert rejected["detail"].endswith("held.jsonl:1")
    command(["multiturn", str(store.folder)])
    card = render(store, ["multiturn"], {})
    assert "Decontaminated against `held.jsonl` (1 rows)" in card
    assert "are rejected (1)." in card
    assert str(tmp_path) not in card
    # Another evaluation file, or another content, is another reading.
    held.write_text(json.dumps({"question": "four and five"}) + "\n")
    capsys.readouterr()
    command(read)
    assert store.report("read")["rejected"] == {}
    assert store.state("multiturn") == "stale"
