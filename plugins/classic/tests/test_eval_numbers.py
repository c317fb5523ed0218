"""The numbers of an evaluation, against examples worked by hand."""

import math

import numpy as np
import pytest

from hf_rlhf.contracts import Question
from hf_rlhf.testing.judges import ScriptedJudge, unanswered
from hf_rlhf_classic.evaluation.compare import Compared, Pair, compare, position_bias
from hf_rlhf_classic.evaluation.estimators import k1, k3, tally
from hf_rlhf_classic.evaluation.results import Measured, Row, results_of
from hf_rlhf_classic.evaluation.spec import Compare


def test_both_estimators_average_to_the_kl():
    """Over all tokens, weighted by the policy's own probability, k1 and k3 are the KL exactly."""
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    kl = float((p * np.log(p / q)).sum())
    assert float((p * k1(np.log(p), np.log(q))).sum()) == pytest.approx(kl)
    assert float((p * k3(np.log(p), np.log(q))).sum()) == pytest.approx(kl)
    assert (k3(np.log(p), np.log(q)) >= 0).all()


def test_all_ties_are_a_win_rate_of_a_half():
    assert tally([0.5, 0.5]) == {
        "win_rate": 0.5,
        "wins": 0,
        "ties": 2,
        "losses": 0,
        "not_judged": 0,
    }


def test_what_nobody_judged_is_counted_and_decides_nothing():
    assert tally([1.0, None, 0.0, None])["not_judged"] == 2
    assert tally([1.0, None])["win_rate"] == 1.0
    assert tally([None])["win_rate"] is None


def _measured(totals, per_prompt=1, **logs):
    return Measured({"total": totals}, per_prompt, **logs)


def test_a_row_by_hand():
    log_2 = math.log(2)
    base = _measured([0.0, 0.0, 1.0, None], per_prompt=2)
    mine = _measured(
        [1.0, 0.0, 1.0, 1.0],
        per_prompt=2,
        log_p=[[-log_2], [-log_2], [-log_2, 0.0], [0.0]],
        log_q=[[-2 * log_2], [-2 * log_2], [-2 * log_2, 0.0], [-log_2]],
    )
    outcomes = [1.0, 0.5, 0.5, None]
    row = Row([mine], [base], [base], {"total": [Compared(outcomes)]})
    found = results_of(row)
    assert found["metrics"]["total"]["mean"] == 0.75  # prompts: 0.5 and 1
    assert found["metrics"]["total"]["n"] == 2
    assert found["reward_std"]["completions"] == pytest.approx(math.sqrt(3) / 4)
    assert found["reward_std"]["prompts"] == 0.25
    assert found["difference"]["total"]["mean"] == 0.25  # 0.5 - 0 and 1 - 1
    assert found["win_rate"]["total"]["interval"]["mean"] == 0.625  # prompts: 0.75 and 0.5
    assert found["win_rate"]["total"]["not_judged"] == 1
    assert found["kl"]["k1"]["per_sequence"]["mean"] == pytest.approx(log_2)
    assert found["kl"]["k1"]["per_token"]["mean"] == pytest.approx(4 * log_2 / 5)
    assert found["reward_per_nat"]["mean"] == pytest.approx(0.25 / log_2)


def test_no_reward_per_nat_where_no_drift_is_shown():
    logs = {"log_p": [[-1.0], [-1.0]], "log_q": [[-2.0], [0.0]]}
    row = Row([_measured([1.0, 1.0], **logs)], None, [_measured([0.0, 0.0])])
    assert results_of(row)["kl"]["k1"]["per_sequence"]["mean"] == 0.0
    assert results_of(row)["reward_per_nat"] is None


PAIRS = [Pair("Which?", "long answer", "short"), Pair("Which?", "no", "a longer one")]
JUDGED = Compare("judge", "scripted", criterion="It is long.")


def _longer(question: Question) -> float:
    """Prefer the longer of the two answers, whichever place it stands in."""
    other = question.context.rpartition("The other answer:\n")[2]
    return float(len(question.candidate) > len(other))


def test_a_judge_sees_both_answers_in_both_orders():
    judge = ScriptedJudge(_longer)
    found = compare(PAIRS, JUDGED, {"scripted": judge})
    assert found.outcomes == [1.0, 0.0]
    assert [one.candidate for one in judge.asked[:2]] == ["long answer", "short"]
    assert "It is long." in judge.asked[0].criterion
    assert "Which?" in judge.asked[0].context
    assert position_bias(found.orders) == {"bias": 0.0, "inconsistent": 0.0}


def test_a_judge_that_goes_by_the_place_says_ties_and_is_found_out():
    judge = ScriptedJudge(lambda question: 1.0)
    found = compare(PAIRS, JUDGED, {"scripted": judge})
    assert found.outcomes == [0.5, 0.5]
    assert position_bias(found.orders) == {"bias": 1.0, "inconsistent": 1.0}


def test_a_judge_that_cannot_say_decides_nothing():
    found = compare(PAIRS, JUDGED, {"scripted": ScriptedJudge(unanswered)})
    assert found.outcomes == [None, None]
    assert position_bias(found.orders) is None


def test_equal_answers_are_a_tie_without_asking():
    judge = ScriptedJudge(error="down")
    assert compare([Pair("?", "same", "same")], JUDGED, {"scripted": judge}).outcomes == [0.5]


def test_each_answer_alone_by_the_row_s_criterion():
    judge = ScriptedJudge(lambda question: float(question.candidate in question.criterion))
    by = Compare("judge", "scripted", criterion="States {answer}.", mode="absolute")
    pairs = [Pair("?", "12", "13", columns={"answer": "12"})]
    assert compare(pairs, by, {"scripted": judge}).outcomes == [1.0]
    assert {one.criterion for one in judge.asked} == {"States 12."}


def test_a_verifier_or_reward_model_compares_by_its_label():
    scored = Pair("?", "a", "b", {"rm": 0.1, "exact": 1.0}, {"rm": 0.2, "exact": 1.0})
    assert compare([scored], Compare("rm"), {}).outcomes == [0.0]
    assert compare([scored], Compare("exact"), {}).outcomes == [0.5]
