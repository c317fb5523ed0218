"""Means and differences over questions, and the notes beside them."""

from collections.abc import Sequence

from hf_rlhf_traces.evaluation.results import differences, few_questions, means
from hf_rlhf_traces.evaluation.scoring import Scored


def rows(
    values: Sequence[float | None], metric: str = "answer_f1", per_question: int = 1
) -> list[Scored]:
    return [
        Scored(
            *(f"t{at}#1", f"t{at}", f"q{at // per_question}", "Q?", 1, 1, "", 1, 1, "", ""),
            {metric: value},
        )
        for at, value in enumerate(values)
    ]


def test_samples_of_one_question_are_drawn_together() -> None:
    alone = means("only", rows([1.0, 0.0] * 6))["answer_f1"]
    pairs = means("only", rows([1.0, 1.0, 0.0, 0.0] * 6, per_question=2))["answer_f1"]
    assert alone is not None
    assert pairs == {**alone, "n": 24}
    assert alone["questions"] == 12


def test_a_difference_is_of_the_samples_that_both_have() -> None:
    better, worse = rows([1.0, 1.0, None, 0.5]), rows([0.5, 0.0, 1.0])
    found = differences("only", better, worse)["answer_f1"]
    assert found is not None
    assert (found["mean"], found["n"]) == (0.75, 2)
    assert means("only", better)["answer_exact"] is None


def test_few_questions_are_noted() -> None:
    (note,) = few_questions({"a": {"only": rows([1.0] * 3)}})
    assert "3 questions only" in note
    assert few_questions({"a": {"only": rows([1.0] * 12)}}) == []
