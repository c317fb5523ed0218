"""Which answers are learned; those that are not are counted."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from hf_rlhf_rollouts import Answer, Reasoning, SearchResult
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.reading import Options, Read, Rejected, read_row
from hf_rlhf_traces.samples import step_rows

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


RIGHT = [
    ({"expected_answer": "Ada"}, "expected_answer"),
    ({"golden": ["Ada", "Lovelace"]}, "golden"),
    ({"golden_answers": ["Ada", "Lovelace"]}, "golden_answers"),
    ({"ground_truth": {"target": ["Ada", "Lovelace"]}}, "ground_truth"),
    ({"reward_model": {"ground_truth": {"target": ["Ada"]}}}, "reward_model.ground_truth"),
    (
        {"expected_answer": None, "correct_answer": {"value": "Ada", "aliases": []}},
        "correct_answer",
    ),
    ({"target": 7}, "target"),
]


@pytest.mark.parametrize(("fields", "name"), RIGHT)
def test_right_answers_are_read_under_the_names_in_use(fields: Any, name: str) -> None:
    outcome = read(row(**fields))
    assert isinstance(outcome, Read)
    (step,), _ = step_rows(outcome.trace, Format())
    first = "7" if name == "target" else "Ada"
    assert step["expected_answers"] == [first, "Lovelace"][: 1 + ("Lovelace" in str(fields))]
    assert outcome.noted.get(f"right_answers.{name}", 0) == (name != "expected_answer")


def test_a_field_that_is_right_and_one_that_calls_the_trace_wrong_are_counted() -> None:
    def noted(**fields: Any) -> dict[str, int]:
        outcome = read(row(**fields))
        assert isinstance(outcome, Read)
        return outcome.noted

    assert noted(answer="Ada", golden="Ada") == {"right_answers.golden": 1}
    assert noted(reward=0.0, correct=False) == {"called_wrong.reward": 1}
    for fields in ({"correct": False}, {"is_correct": "False"}, {"verdict": "Incorrect"}):
        assert noted(**fields) == {f"called_wrong.{next(iter(fields))}": 1}
    assert noted(info={"reward": -1}) == {"called_wrong.info.reward": 1}
    for fields in ({"reward": 1.0}, {"reward": None}, {"correct": True}, {"wrong": False}):
        assert noted(**fields) == {}
