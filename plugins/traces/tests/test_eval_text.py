"""How alike two texts are."""

import pytest

from hf_rlhf_rollouts import Search
from hf_rlhf_traces.evaluation.text import (
    exact_match,
    match_searches,
    normalise,
    recall,
    rouge_l,
    token_f1,
    words,
)


def test_rouge_l_is_that_of_the_package_rouge_score() -> None:
    """Given by rouge-score 0.1.2, rougeL without a stemmer."""
    for one, other, given_there in ROUGE:
        assert rouge_l(one, other) == pytest.approx(given_there)


ROUGE = [
    (
        "The quick brown fox jumps over the lazy dog.",
        "A quick brown dog jumps on the log.",
        8 / 17,
    ),
    ("U.S. GDP grew 3.14% in Q2", "GDP of the U.S. grew by 3 percent", 8 / 17),
    ("x_y don't", "x y don t", 1.0),
    ("one two", "three", 0.0),
]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The  cat.", "cat"),
        ("U.S.", "us"),
        ("Straße", "STRASSE"),
        ("e\u0301t\u00e9", "\u00e9te\u0301"),
        ("\u202eKira\u202c\u200b", "kira"),
        ("東京。", "東京"),
    ],
)
def test_answers_that_are_the_same(one: str, other: str) -> None:
    assert exact_match(one, other) == exact_match(normalise(one), one) == 1


@pytest.mark.parametrize(("one", "other"), [("+", "-"), ("The", "A"), ("", "the"), ("1.5", "1,6")])
def test_answers_that_are_not(one: str, other: str) -> None:
    assert exact_match(one, other) == token_f1(one, other) == 0


def test_scripts_without_spaces_are_compared_by_character() -> None:
    assert token_f1("東京都", "東京") == pytest.approx(0.8)
    assert rouge_l("東京都にいる", "東京にいる") > 0.9
    assert words("東京 Kira") == ["東", "京", "kira"]
    assert words("नमस्ते") == ["नमस्ते"]


def test_words_are_wanted_as_often_as_they_stand() -> None:
    assert recall(["the sea"], ["the sea, the sky"]) == 0.5
    assert recall([], ["x"]) == 0
    assert recall(["x"], []) is None


def test_queries_are_paired_with_the_nearest() -> None:
    one, other = Search("capital of France"), Search("mayor of Paris")
    assert match_searches([other, one], [one, other]) == 1
    assert match_searches([one], [one, other]) == pytest.approx(2 / 3)
    # Guessing more queries than are wanted gains nothing.
    assert match_searches([one, one, one], [one]) == 0.5
    assert match_searches([], [one]) == 0
    assert match_searches([Search("x", "edgar")], [Search("x")]) == 0
