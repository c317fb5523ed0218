"""Labelled steps from files, and made of GSM8K's solutions."""

import json
import random
import re
from pathlib import Path

import pytest

from hf_rlhf.errors import DataError
from hf_rlhf_lab.process.data import (
    MARK,
    _evaluate,
    gsm8k_steps,
    solution_with_error,
    steps,
)

QUESTION = "Tom has 48 clips. He sells half, then twice as many as that. How many does he sell?"
SOLUTION = (
    "First he sells 48/2 = <<48/2=24>>24 clips.\n"
    "Then he sells 24*2 = <<24*2=48>>48 clips.\n"
    "So he sells 24+48 = $<<24+48=72>>72 in all.\n#### 72"
)
REAL = Path(__file__).parents[4] / "shared" / "data" / "gsm8k" / "test.jsonl"


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def test_an_error_that_is_carried_is_the_only_sum_that_does_not_hold():
    answers = set()
    for seed in range(30):
        lines, wrong = solution_with_error(QUESTION, SOLUTION, "carried", random.Random(seed))
        for at, line in enumerate(lines[:-1]):
            ((expression, result),) = MARK.findall(line)
            assert (_evaluate(expression) == _evaluate(result)) == (at != wrong)
        assert lines[-1] != "#### 72"
        final = MARK.findall(lines[-2])[0][1]
        assert lines[-1] == f"#### {final}"
        answers.add(lines[-1])
    assert len(answers) > 3


def test_a_result_that_the_question_mentions_is_not_replaced_later():
    """24 is also a number of the question: whether a later 24 is that one, nobody knows."""
    question = f"{QUESTION} It is within 24 hours, and of 48 and 72."
    solution = "He sells 48/2 = <<48/2=24>>24.\nIn a day 24+1 = <<24+1=25>>25.\n#### 25"
    rng = random.Random(0)
    rng.choice = lambda values: values[0]
    with pytest.raises(ValueError, match="unambiguously"):
        solution_with_error(question, solution, "carried", rng)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2*(3+4)-1", 13), (".5*10", 5), ("1,000/4", 250), ("05+1", 6), ("-3+5", 2)],
)
def test_calculator_marks_are_evaluated_exactly(expression, value):
    assert _evaluate(expression) == value


@pytest.mark.parametrize("expression", ["1/0", "2**9", "__import__('os')"])
def test_other_expressions_are_not(expression):
    assert _evaluate(expression) is None


def test_solutions_of_no_use_are_counted_by_reason(tmp_path):
    def row(solution, question=QUESTION):
        return {"question": question, "answer": solution}

    path = write(
        tmp_path / "rows.jsonl",
        *(row(SOLUTION, f"{number}: {QUESTION}") for number in range(20)),
        row("He sells 72.\n#### 72"),
        row("48/2 = <<48/2=25>>25\n#### 25"),
        row("48/2 = <<48/2=24>>24"),
    )
    loaded = gsm8k_steps(path, kept=0, carried=0, test_rows=5)
    assert loaded.report["dropped"] == {
        "no calculator mark": 1,
        "a calculator mark does not hold": 1,
        "no answer line": 1,
    }
    assert (len(loaded.dataset["train"]), len(loaded.dataset["test"])) == (15, 5)
    assert loaded.dataset["train"][0]["completions"] == SOLUTION.split("\n")


STEPWISE = {"prompt": "1+1+1=?\n", "completions": ["1+1=2", "2+1=4"], "labels": [True, False]}


def test_steps_of_prm800k_and_math_shepherd(tmp_path):
    step = {"completions": [{"text": "a", "rating": -1}, {"text": "b", "rating": 0}]}
    prm800k = {
        "question": {"problem": "1+1?"},
        "label": {
            "steps": [
                {**step, "chosen_completion": 1, "human_completion": None},
                {**step, "chosen_completion": None, "human_completion": None},
            ]
        },
    }
    other = {**prm800k, "question": {"problem": "2+2?"}}
    path = write(tmp_path / "prm800k.jsonl", prm800k, other)
    row = steps(path, form="prm800k", test_rows=1).dataset["train"][0]
    assert (row["completions"], row["labels"]) == (["b", "a"], [True, False])
    shepherd = [
        {
            "input": f"{n}+1? Step 1: {n}+1=2 ки\nStep 2: The answer is: 2 ки",
            "label": f"{n}+1? Step 1: {n}+1=2 +\nStep 2: The answer is: 2 -",
        }
        for n in (1, 2)
    ]
    path = write(tmp_path / "shepherd.jsonl", *shepherd)
    rows = steps(path, form="math_shepherd", test_rows=1).dataset
    row = min((*rows["train"], *rows["test"]), key=lambda row: row["prompt"])
    assert row["prompt"] == "1+1?\n"
    assert row["completions"] == ["Step 1: 1+1=2", "Step 2: The answer is: 2"]
    assert row["labels"] == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [True]}, "2 steps and 1 labels"),
        ({"labels": [True, 1]}, "`labels` has 1"),
        ({"completions": ["1+1=2", " "]}, "step 1 is ' '"),
        ({"completions": "1+1=2"}, "at least one step"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, change, message):
    path = write(tmp_path / "a.jsonl", STEPWISE, {**STEPWISE, **change})
    with pytest.raises(DataError, match=re.escape(message)) as refused:
        steps(path)
    assert "a.jsonl:2" in str(refused.value)
