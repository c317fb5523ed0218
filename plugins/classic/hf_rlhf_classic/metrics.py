"""`evaluate.Metric`s of preference learning that ship with the package and need no network.

    from hf_rlhf_classic.metrics import WinRate
    WinRate().compute(predictions=[0.9, 0.2], references=[0.5, 0.2])

The formulas are in `hf_rlhf_classic.evaluation.estimators`. A value that is not a finite number is
refused, never counted as a loss.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from hf_rlhf_classic.evaluation import estimators

_NUMBER = datasets.Value("float64")


class _Metric(evaluate.Metric):  # type: ignore[misc]
    """A metric whose docstring describes it."""

    inputs: ClassVar[str]
    feature: ClassVar[Any] = _NUMBER
    citation: ClassVar[str] = ""

    def _info(self) -> Any:
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation=self.citation,
            inputs_description=self.inputs,
            features=datasets.Features({"predictions": self.feature, "references": self.feature}),
        )


class WinRate(_Metric):
    """Share of pairs in which `predictions` beat `references`, ties counted a half."""

    inputs = "predictions, references: one score per pair, higher is better."

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, Any]:
        _check_finite(predictions, references)
        counts = estimators.tally(list(map(estimators.outcome, predictions, references)))
        return {key: counts[key] for key in ("win_rate", "wins", "ties", "losses")}


class KLFromReference(_Metric):
    """KL(policy || reference) in nats, on completions drawn from the policy; estimators k1, k3."""

    inputs = (
        "predictions, references: for each completion the log-probabilities of its tokens, under "
        "the policy and under the reference."
    )
    feature = datasets.Sequence(_NUMBER)
    citation = "Schulman (2020), Approximating KL divergence, http://joschu.net/blog/kl-approx.html"

    def _compute(
        self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]]
    ) -> dict[str, Any]:
        pairs = list(zip(predictions, references, strict=True))
        for policy, reference in pairs:
            _check_finite(policy, reference)
        tokens = sum(len(policy) for policy, _ in pairs)
        if not tokens:
            raise ValueError("no completion has a token, so there is no KL to estimate")
        k1, k3 = (
            sum(float(estimate(policy, reference).sum()) for policy, reference in pairs)
            for estimate in (estimators.k1, estimators.k3)
        )
        return {
            "kl_per_sequence": k1 / len(pairs),
            "kl_per_token": k1 / tokens,
            "kl_per_sequence_k3": k3 / len(pairs),
            "kl_per_token_k3": k3 / tokens,
        }


class PairwiseAccuracy(_Metric):
    """Share of pairs whose chosen answer scores higher, ties counted a half; also by length."""

    inputs = (
        "predictions: scores of the chosen answers; references: of the rejected ones; optionally "
        "chosen_lengths and rejected_lengths."
    )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        chosen_lengths: Sequence[float] | None = None,
        rejected_lengths: Sequence[float] | None = None,
    ) -> dict[str, Any]:
        _check_finite(predictions, references)
        lengths = (chosen_lengths, rejected_lengths)
        return estimators.pairwise_accuracy(predictions, references, *lengths)


class ExpectedCalibrationError(_Metric):
    """Expected calibration error: |mean probability - share of ones|, averaged over bins."""

    inputs = (
        "predictions: probabilities, such as the sigmoid of a reward model's margin; references: 1 "
        "if it happened, else 0; bins: how many (10)."
    )
    citation = "Guo et al. (2017), On Calibration of Modern Neural Networks, arXiv:1706.04599"

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float], bins: int = 10
    ) -> dict[str, Any]:
        error = estimators.expected_calibration_error(predictions, references, bins)
        return {"expected_calibration_error": error}


def _check_finite(*columns: Sequence[float]) -> None:
    for column in columns:
        if not np.isfinite(np.asarray(column, dtype=np.float64)).all():
            raise ValueError("a score is missing or not finite; leave such pairs out and say so")
