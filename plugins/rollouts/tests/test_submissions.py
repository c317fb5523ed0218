"""Which calls hand in an answer, and which of their arguments it is."""

import json
from typing import Any

import pytest

from hf_rlhf_rollouts.submissions import submission

HANDED_IN = [
    (
        "submit_final_result",
        {"final_result": "France", "explanation": "The page says so."},
        "France",
    ),
    ("submit_answer", {"answer": 42, "unit": "kilometres"}, "42"),
    ("submitAnswer", {"notes": "a long remark", "finalAnswer": "A"}, "A"),
    ("Submit-Final-Answer", {"Final Answer": "A", "answer": "because of A"}, "A"),
    ("mcp__browser__submit_answer", {"answer": None, "result": "R"}, "R"),
    ("functions.finish", {"result": "R", "ok": True}, "R"),
    ("submit", {"answer": {"value": 42}}, "42"),
    ("submit", {"answer": {"value": 42, "unit": "km"}}, '{"value": 42, "unit": "km"}'),
    ("submit", {"response": {"answer": "Paris", "explanation": "a long remark"}}, "Paris"),
    ("submit", '"Paris"', "Paris"),
    ("submit", '["Paris"]', "Paris"),
    ("submit", json.dumps(json.dumps({"answer": "Paris"})), "Paris"),
    ("final_answer", {"conclusion": "Paris", "evidence": ["a page"], "notes": "none"}, "Paris"),
    ("submit_report", {"report": "Paris", "sources": ["p"]}, "Paris"),
]
OTHERS = [
    ("get_answer", {"query": "capital"}),
    ("question_answer", {"question": "capital"}),
    ("answer_question", {"question": "capital", "text": "a document"}),
    ("submit_flight_search", {"origin": "A", "destination": "B"}),
    ("finish", {"reason": "All is done.", "paths": ["a.xlsx"]}),
    ("submit_answer", {"answer": " ", "explanation": "none found"}),
    ("submit_answer", '{"answer": "Par'),
]


@pytest.mark.parametrize(
    ("tool", "given", "answer"), [*HANDED_IN, *((*other, None) for other in OTHERS)]
)
def test_the_answer_is_known_by_the_name_of_the_argument(
    tool: str, given: Any, answer: str | None
) -> None:
    handed_in = submission(tool, given if isinstance(given, str) else json.dumps(given))
    assert (handed_in and handed_in.text) == answer


def test_before_a_reply_only_a_certain_answer_is_one() -> None:
    assert submission("submit_order", '{"order": "A"}') is not None
    assert submission("submit_order", '{"order": "A"}', replies=True) is None
    assert submission("submit_order", "A", replies=True) is None
    assert submission("submit_answer", '{"text": "A"}', replies=True) is not None
    assert submission("finish", '{"answer": "A"}', replies=True) is not None


def test_arguments_beside_the_answer_are_named() -> None:
    inner = submission("submit", '{"response": {"answer": 1, "why": "x"}, "unit": "km"}')
    assert inner == ("1", ("unit", "why"))
