"""Intervals by question, differences, and the verdicts that follow from them."""

import random
from collections.abc import Sequence

import pytest

from hf_rlhf.errors import ConfigError
from hf_rlhf.evaluation.statistics import bootstrap_mean
from hf_rlhf_traces.evaluation.claims import Claim, parse_claim, standing
from hf_rlhf_traces.evaluation.intervals import Estimate, estimates
from hf_rlhf_traces.evaluation.results import Scored, differences, few_questions, judged, means


def estimate(
    values: Sequence[float | None],
    questions: Sequence[str] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Estimate | None:
    names = questions or [str(place) for place in range(len(values))]
    return estimates({"x": values}, names, {"x": bounds} if bounds else {})["x"]


def test_with_one_sample_a_question_it_is_the_plain_bootstrap() -> None:
    rng = random.Random(1)
    values = [rng.random() for _ in range(40)]
    found, plain = estimate(values), bootstrap_mean(values)
    assert found is not None
    assert found.mean == pytest.approx(plain.mean)
    assert (found.low, found.high) == (
        pytest.approx(plain.low, abs=0.01),
        pytest.approx(plain.high, abs=0.01),
    )


def test_samples_of_one_question_are_no_more_than_one() -> None:
    rng = random.Random(2)
    values = [float(rng.random() < 0.5) for _ in range(20)]
    alone = estimate(values)
    copied = estimate(values * 10, [str(place) for place in range(20)] * 10)
    assert alone is not None
    assert copied is not None
    assert (copied.n, copied.questions) == (200, 20)
    assert copied.low == pytest.approx(alone.low, abs=0.03)
    assert copied.high == pytest.approx(alone.high, abs=0.03)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Questions differ much, samples of one question little: samples alone would be too sure."""
    rng = random.Random(3)
    held = 0
    for _ in range(30):
        values, questions = [], []
        for question in range(25):
            centre = rng.gauss(0, 1)
            for _ in range(rng.randint(1, 5)):
                values.append(centre + rng.gauss(0, 0.1))
                questions.append(str(question))
        found = estimate(values, questions)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0 <= found.high
    assert held >= 26  # of 30; with these draws, intervals over samples hold it 20 times


def test_what_has_no_value_is_no_zero() -> None:
    assert estimate([None, None]) is None
    found = estimate([1.0, None, 0.0, None], ["a", "b", "c", "d"])
    assert found is not None
    assert (found.mean, found.n, found.questions) == (0.5, 2, 2)
    assert estimates({}, [], {}) == {}


def test_values_that_are_all_equal_have_the_bound_that_their_number_gives() -> None:
    found = estimate([0.0] * 30, bounds=(0, 1))
    assert found is not None
    # The rule of three: 0 of 30 excludes about 3/30.
    assert (found.low, found.high) == (0, pytest.approx(0.095, abs=0.001))
    few = estimate([1.0] * 4, ["a", "a", "b", "b"], bounds=(0, 1))
    assert few is not None
    assert few.low == pytest.approx(0.05**0.5)
    unbounded = estimate([7.0] * 30)
    assert unbounded is not None
    assert unbounded.low is None


def test_one_question_gives_no_interval() -> None:
    found = estimate([0.0, 1.0, 1.0], ["a"] * 3, bounds=(0, 1))
    assert found is not None
    assert (found.low, found.high, found.n) == (None, None, 3)


def rows(values: Sequence[float | None], metric: str = "answer_f1") -> list[Scored]:
    return [
        Scored(f"t{at}#1", f"t{at}", f"q{at}", "Q?", 1, 1, "", 1, 1, "", "", {metric: value})
        for at, value in enumerate(values)
    ]


def test_a_difference_is_of_the_samples_that_both_have() -> None:
    better, worse = rows([1.0, 1.0, None, 0.5]), rows([0.5, 0.0, 1.0])
    found = differences("only", better, worse)["answer_f1"]
    assert found is not None
    assert (found.mean, found.n) == (0.75, 2)
    assert means("only", better)["answer_exact"] is None


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ([1.0, 0.9] * 10, [0.1, 0.3] * 10, "shown"),
        ([0.1, 0.3] * 10, [1.0, 0.9] * 10, "opposite"),
        ([0.0, 1.0] * 10, [1.0, 0.0] * 10, "not shown"),
        ([1.0] * 10, [0.0] * 10, "shown"),
        ([1.0] * 3, [0.0] * 3, "not shown"),
        ([None] * 5, [0.0] * 5, "not shown"),
    ],
)
def test_a_verdict_is_what_the_interval_allows(
    better: list[float | None], worse: list[float | None], verdict: str
) -> None:
    claim = Claim("a is better than b", "only", "answer_f1", "a", "b")
    scored = {"a": {"only": rows(better)}, "b": {"only": rows(worse)}}
    (found,) = judged([claim], scored)  # type: ignore[arg-type]
    assert found["verdict"] == verdict


def test_of_what_should_be_low_less_is_better() -> None:
    claim = Claim("a is cut off less than b", "only", "cut_off", "a", "b")
    low, high = rows([0.0] * 20, "cut_off"), rows([1.0] * 20, "cut_off")
    for first, second, verdict in ((low, high, "shown"), (high, low, "opposite")):
        scored = {"a": {"only": first}, "b": {"only": second}}
        assert judged([claim], scored)[0]["verdict"] == verdict  # type: ignore[arg-type]


TRAINED = {"p": "traces_prefix", "o": "traces_only", "base": None}


@pytest.mark.parametrize(
    ("summaries", "verdict"),
    [([0.0] * 40, "shown"), ([0.0] * 10, "not shown"), ([1.0] * 20 + [0.0] * 20, "opposite")],
)
def test_that_summary_only_cannot_summarise_is_measured(
    summaries: list[float | None], verdict: str
) -> None:
    cannot, worse = standing(TRAINED, ["prefix", "only"])
    assert (worse.better, worse.worse, worse.metric) == ("p", "o", "summary_rouge_l")
    (found,) = judged([cannot], {"o": {"prefix": rows(summaries, "summary_valid")}})
    assert found["verdict"] == verdict
    assert list(standing(TRAINED, ["only"])) == []


def test_a_claim_is_read() -> None:
    claim = parse_claim("prefix quotes_recall: p > o", list(TRAINED), ["prefix"])
    assert (claim.task, claim.metric, claim.better, claim.worse) == (
        *("prefix", "quotes_recall", "p", "o"),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p is better", "is not a claim"),
        ("prefix answer_f1: p > x", "no model is labelled 'x'"),
        ("only summary_rouge_l: p > o", "no metric of only"),
        ("prefix tokens: p > o", "no metric of prefix of which more or less is better"),
        ("both answer_f1: p > o", "'both' is not measured here"),
    ],
)
def test_a_claim_that_cannot_be_judged(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_claim(text, list(TRAINED), ["prefix", "only"])


def test_few_questions_are_said() -> None:
    assert "3 questions only" in few_questions({"a": {"only": rows([1.0] * 3)}})
    assert few_questions({"a": {"only": rows([1.0] * 12)}}) == ""
