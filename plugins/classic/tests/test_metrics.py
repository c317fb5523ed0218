"""The `evaluate.Metric`s: numbers by hand, no network, nothing missing counted."""

import math
import socket

import evaluate
import pytest

from hf_rlhf_classic.metrics import (
    ExpectedCalibrationError,
    KLFromReference,
    PairwiseAccuracy,
    WinRate,
)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise AssertionError("a metric went to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_win_rate_counts_ties_a_half():
    values = WinRate().compute(predictions=[1.0, 0.5, 0.2, 0.9], references=[0.0, 0.5, 0.3, 0.1])
    assert values == {"win_rate": 0.625, "wins": 2, "ties": 1, "losses": 1}


def test_kl_is_the_log_ratio_per_sequence_and_per_token():
    half, quarter = math.log(0.5), math.log(0.25)
    values = KLFromReference().compute(
        predictions=[[half, half], [half]], references=[[quarter, half], [quarter]]
    )
    # Log ratios: log 2 and 0 in the first, log 2 in the second.
    assert values["kl_per_sequence"] == pytest.approx(2 * math.log(2) / 2)
    assert values["kl_per_token"] == pytest.approx(2 * math.log(2) / 3)
    # k3 = q/p - 1 - log(q/p), with q/p = 1/2: -1/2 + log 2.
    assert values["kl_per_token_k3"] == pytest.approx(2 * (math.log(2) - 0.5) / 3)


def test_kl_of_a_policy_from_itself_is_exactly_0():
    logs = [[-0.1, -2.3], [-5.0]]
    values = KLFromReference().compute(predictions=logs, references=logs)
    assert set(values.values()) == {0.0}


def test_kl_needs_the_same_tokens():
    with pytest.raises(ValueError, match="2 log-probabilities against 1"):
        KLFromReference().compute(predictions=[[-1.0, -1.0]], references=[[-1.0]])


def test_pairwise_accuracy_shows_a_model_that_scores_length():
    chosen, rejected = [3.0, 1.0, 4.0, 2.0], [1.0, 2.0, 2.0, 5.0]
    values = PairwiseAccuracy().compute(
        predictions=chosen,
        references=rejected,
        chosen_lengths=chosen,
        rejected_lengths=rejected,
    )
    assert values["pairwise_accuracy"] == 0.5
    assert (values["accuracy_chosen_longer"], values["accuracy_chosen_shorter"]) == (1.0, 0.0)
    assert values["length_bias"] == 1.0


def test_pairwise_accuracy_without_shorter_ones_claims_no_bias():
    values = PairwiseAccuracy().compute(
        predictions=[1.0], references=[0.0], chosen_lengths=[2], rejected_lengths=[1]
    )
    assert values["accuracy_chosen_shorter"] is None
    assert values["length_bias"] is None


def test_lengths_of_one_side_are_refused():
    with pytest.raises(ValueError, match="both answers, or of neither"):
        PairwiseAccuracy().compute(predictions=[1.0], references=[0.0], chosen_lengths=[2])


def test_calibration_error_by_hand():
    # One bin holds 0.9 and 0.95 (mean 0.925, half of them came true), one holds 0.1 (none did).
    values = ExpectedCalibrationError().compute(predictions=[0.9, 0.95, 0.1], references=[1, 0, 0])
    assert values["expected_calibration_error"] == pytest.approx(2 / 3 * 0.425 + 1 / 3 * 0.1)


def test_what_always_comes_true_at_probability_1_is_calibrated():
    values = ExpectedCalibrationError().compute(predictions=[1.0, 0.0], references=[1, 0])
    assert values["expected_calibration_error"] == 0.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"predictions": [1.2], "references": [1]}, "outside"),
        ({"predictions": [0.5], "references": [math.nan]}, "neither 0 nor 1"),
        ({"predictions": [0.5], "references": [2]}, "neither 0 nor 1"),
        ({"predictions": [0.5], "references": [1], "bins": 0}, "0 bins"),
    ],
)
def test_calibration_of_what_is_no_outcome_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ExpectedCalibrationError().compute(**values)


def test_they_combine():
    both = evaluate.combine([WinRate(), PairwiseAccuracy()])
    values = both.compute(predictions=[1.0, 0.0], references=[0.0, 1.0])
    assert (values["win_rate"], values["pairwise_accuracy"]) == (0.5, 0.5)


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_a_missing_score_is_no_loss(missing):
    with pytest.raises(ValueError, match="missing or not finite"):
        WinRate().compute(predictions=[1.0, missing], references=[0.0, 0.0])
