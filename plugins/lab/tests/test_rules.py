"""Rules as rewards."""

import logging

import pytest

from hf_rlhf.errors import ConfigError
from hf_rlhf.testing import check_reward
from hf_rlhf_lab.rules import Concise, Matches, MathAnswer, ValidJson


def score(reward, *completions, **columns):
    return reward([""] * len(completions), list(completions), **columns)


@pytest.mark.parametrize("name", ["concise", "valid_json"])
def test_they_meet_the_contract_of_rewards(name):
    check_reward({"concise": Concise(), "valid_json": ValidJson()}[name])


def test_concise_falls_from_one_to_zero_between_its_limits():
    texts = ["word " * count for count in (1, 150, 151, 225, 299, 300, 1000)]
    assert score(Concise(), *texts) == pytest.approx([1, 1, 149 / 150, 0.5, 1 / 150, 0, 0])
    assert score(Concise(hard=True), *texts) == [1, 1, 0, 0, 0, 0, 0]


HOLLOW = ["That's a great question! It is 4.", "THAT’S A GREAT QUESTION. It is 4."]
HOLLOW += ["Yes. Absolutely!", "Of course! 4.", "I’d be happy to help: 4."]
PLAIN = ["It is certainly 4.", "Of course it is 4.", "Absolutely not: 4."]


def test_concise_pays_nothing_for_hollow_phrases_and_for_silence():
    logged = {}
    assert score(Concise(), *HOLLOW, "", "   ") == [0.0] * 7
    assert score(Concise(), *PLAIN) == [1.0] * 3
    score(Concise(), HOLLOW[0], PLAIN[0], log_metric=logged.__setitem__)
    assert logged == {"concise/hollow": 0.5}


def test_matches_anywhere_in_the_whole_and_nowhere():
    texts = ["a 42 b", "42\n", "none"]
    assert score(Matches(r"\d+"), *texts) == [1, 1, 0]
    assert score(Matches(r"\d+", whole=True), *texts) == [0, 1, 0]
    assert score(Matches(r"\d+", absent=True), *texts) == [0, 0, 1]


def test_valid_json_reads_one_value_and_its_schema():
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    texts = ['{"a": 1}', '```json\n{"a": 1}\n```', '{"a": "1"}', '{"a": 1} and more']
    assert score(ValidJson(schema), *texts) == [1, 1, 0, 0]
    assert score(ValidJson(), "[1]", "NaN", '{"a": 1, "a": 2}', "") == [1, 0, 0, 0]
    assert score(ValidJson(fenced=False), "```json\n1\n```") == [0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```json\n\n{}\n\n```", 1),
        ("```\n[1,\n2]\n```", 1),
        ("  ```\n1\n  ```\n", 1),
        ("```json 1```", 0),
        ("```\n1\n```\n```\n2\n```", 0),
    ],
)
def test_valid_json_in_a_fence(text, expected):
    assert score(ValidJson(), text) == [expected]


@pytest.mark.parametrize("filler", ["\n ", "```\n", "["])
def test_no_completion_takes_long_to_read(filler):
    """White space on both sides of `.*` took cubic time: 2,400 line breaks, 24 s."""
    text = filler * (1_000_000 // len(filler))
    for hostile in (f"```{text}x", f"```\n{text}\n```", text, f"```{text}```"):
        assert score(ValidJson(), hostile) == [0]


@pytest.mark.parametrize("depth", [900, 100_000])
def test_what_is_nested_too_deep_for_its_schema_is_not_valid(depth):
    nested = ValidJson({"type": "array", "items": {"$ref": "#"}})
    assert score(nested, "[[]]", "[" * depth + "]" * depth) == [1, 0]
    tree = ValidJson({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False})
    assert score(tree, '{"a": {"a": {}}}', '{"a":' * depth + "{}" + "}" * depth) == [1, 0]


def test_what_math_verify_logs_of_a_completion_is_short_and_readable(caplog):
    MathAnswer()([""], ["1"], solution=["\\boxed{1}"])
    text = "\x1b[2J" + "[" * 500
    logging.getLogger("math_verify.parser").warning(f"Timeout during parsing: {text}")
    (record,) = caplog.records
    assert "\x1b" not in record.getMessage()
    assert len(record.getMessage()) <= 120


def test_math_answer_compares_values_and_abstains_without_a_solution():
    pytest.importorskip("math_verify")
    responses = [
        r"so \boxed{\frac{1}{2}}",
        "6*7 is it\n#### 42",
        "#### 1,042",
        "no answer",
        "#### 1",
    ]
    solutions = [r"\boxed{0.5}", "6*7=<<6*7=42>>42\n#### 42", "#### 1042", "#### 3", "n/a"]
    assert score(MathAnswer(), *responses, solution=solutions) == [1, 1, 1, 0, None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Concise(full=300, zero=300),
        lambda: Matches("("),
        lambda: ValidJson({"type": "objekt"}),
        lambda: ValidJson({"$ref": "#"}),
        lambda: ValidJson({"anyOf": [{"$ref": "#"}]}),
    ],
)
def test_arguments_without_a_meaning_are_refused(make):
    with pytest.raises(ConfigError):
        make()
