"""The numbers of an evaluation, against examples worked by hand."""

import math

import numpy as np
import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.evaluation import Evaluation
from hf_rlhf.testing.judges import ScriptedJudge, no_answer
from hf_rlhf_classic.evaluation.compare import Pair, compare, position_bias
from hf_rlhf_classic.evaluation.estimators import k1, k3
from hf_rlhf_classic.evaluation.spec import Compare
from hf_rlhf_classic.evaluation.task import K1, K3, LOGGED, kl_ratios, reward_spread


def test_both_estimators_average_to_the_kl():
    """Over all tokens, weighted by the policy's own probability, k1 and k3 are the KL exactly."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    kl = float((p * np.log(p / q)).sum())
    assert float((p * k1(np.log(p), np.log(q))).sum()) == pytest.approx(kl)
    assert float((p * k3(np.log(p), np.log(q))).sum()) == pytest.approx(kl)
    assert (k3(np.log(p), np.log(q)) >= 0).all()


def _evaluation(totals, k1_sums=(), tokens=(), per_prompt=2):
    rows = [{"total": total} for total in totals]
    for row, nats, count in zip(rows, k1_sums, tokens, strict=False):
        row |= {K1: nats, K3: nats, LOGGED: count}
    return Evaluation(rows, completions_per_prompt=per_prompt)


def test_kl_and_spread_by_hand():
    base = _evaluation([0.0, 0.0, 1.0, None])
    mine = _evaluation([1.0, 0.0, 1.0, 1.0], [math.log(2)] * 4, [1.0, 1.0, 2.0, 1.0])
    ratios = kl_ratios([mine], [base], mine.means()[K1])
    assert ratios["kl_per_token_k1"].mean == pytest.approx(4 * math.log(2) / 5)
    # The prompts' means differ by 0.5 - 0 and 1 - 1.
    assert ratios["reward_per_nat"].mean == pytest.approx(0.25 / math.log(2))
    spread = reward_spread([mine])
    assert spread == {"completions": pytest.approx(math.sqrt(3) / 4), "prompts": 0.25}


def test_no_reward_per_nat_where_no_drift_is_shown():
    seed = _evaluation([1.0, 1.0], [1.0, -1.0], [1.0, 1.0], per_prompt=1)
    assert "reward_per_nat" not in kl_ratios(
        [seed], [_evaluation([0.0, 0.0], per_prompt=1)], seed.means()[K1]
    )


PAIRS = [Pair("Which?", "long answer", "short"), Pair("Which?", "no", "a longer one")]
JUDGED = Compare("judge", "scripted", criterion="It is long.")


def _longer(question: Question) -> float:
    """Prefer the longer of the two answers, whichever place it stands in."""
    other = question.context.rpartition("The other answer:\n")[2]
    return float(len(question.candidate) > len(other))


def test_a_judge_sees_both_answers_in_both_orders():
    judge = ScriptedJudge(_longer)
    compared = compare(PAIRS, JUDGED, {"scripted": judge})
    assert compared.outcomes == [1.0, 0.0]
    assert [question.candidate for question in judge.questions[:2]] == ["long answer", "short"]
    assert "It is long." in judge.questions[0].criterion
    assert "Which?" in judge.questions[0].context
    assert position_bias(compared.orders) == {"bias": 0.0, "inconsistent": 0.0}


def test_a_judge_that_goes_by_the_place_says_ties_and_is_found_out():
    judge = ScriptedJudge(lambda question: 1.0)
    compared = compare(PAIRS, JUDGED, {"scripted": judge})
    assert compared.outcomes == [0.5, 0.5]
    assert position_bias(compared.orders) == {"bias": 1.0, "inconsistent": 1.0}


def test_a_judge_that_cannot_say_decides_nothing():
    compared = compare(PAIRS, JUDGED, {"scripted": ScriptedJudge(no_answer)})
    assert compared.outcomes == [None, None]
    assert position_bias(compared.orders) is None


def test_equal_answers_are_a_tie_without_asking():
    judge = ScriptedJudge(error="down")
    assert compare([Pair("?", "same", "same")], JUDGED, {"scripted": judge}).outcomes == [0.5]
