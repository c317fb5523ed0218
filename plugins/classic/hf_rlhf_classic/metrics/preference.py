"""The metric classes. A value that is no finite number is refused, never counted as a loss."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from hf_rlhf_classic.evaluation import estimators

_SCHULMAN = "Schulman (2020), Approximating KL divergence, http://joschu.net/blog/kl-approx.html"
_GUO = "Guo et al. (2017), On Calibration of Modern Neural Networks, arXiv:1706.04599"


class WinRate(evaluate.Metric):  # type: ignore[misc]
    """How often one model's completions score higher than another's, ties counted a half."""

    def _info(self) -> Any:
        return _info(
            "Share of pairs in which `predictions` beat `references`, ties counted a half.",
            "predictions, references: one score per pair, higher is better.",
            predictions=datasets.Value("float64"),
            references=datasets.Value("float64"),
        )

    def _compute(self, predictions: Sequence[float], references: Sequence[float]) -> dict[str, Any]:
        _finite(predictions, references)
        pairs = zip(predictions, references, strict=True)
        counts = estimators.tally([estimators.outcome(mine, other) for mine, other in pairs])
        return {key: counts[key] for key in ("win_rate", "wins", "ties", "losses")}


class KLFromReference(evaluate.Metric):  # type: ignore[misc]
    """KL of a policy from a reference, estimated on completions drawn from the policy."""

    def _info(self) -> Any:
        tokens = datasets.Sequence(datasets.Value("float64"))
        return _info(
            "KL(policy || reference) in nats, per sequence and per token, on completions that were "
            "drawn from the policy; estimators k1 and k3.",
            "predictions, references: for each completion the log-probabilities of its tokens, "
            "under the policy and under the reference.",
            _SCHULMAN,
            predictions=tokens,
            references=tokens,
        )

    def _compute(
        self, predictions: Sequence[Sequence[float]], references: Sequence[Sequence[float]]
    ) -> dict[str, Any]:
        pairs = list(zip(predictions, references, strict=True))
        for policy, reference in pairs:
            _finite(policy, reference)
        tokens = sum(len(policy) for policy, _ in pairs)
        if not tokens:
            raise ValueError("no completion has a token, so there is no KL to estimate")
        sums = {
            name: sum(float(estimate(policy, reference).sum()) for policy, reference in pairs)
            for name, estimate in (("k1", estimators.k1), ("k3", estimators.k3))
        }
        return {
            "kl_per_sequence": sums["k1"] / len(pairs),
            "kl_per_token": sums["k1"] / tokens,
            "kl_per_sequence_k3": sums["k3"] / len(pairs),
            "kl_per_token_k3": sums["k3"] / tokens,
        }


class PairwiseAccuracy(evaluate.Metric):  # type: ignore[misc]
    """How often a reward model scores the chosen answer higher, and how much length decides."""

    def _info(self) -> Any:
        return _info(
            "Share of pairs whose chosen answer scores higher than the rejected one, ties counted "
            "a half; with lengths also where the chosen answer is longer, and where it is shorter.",
            "predictions: scores of the chosen answers; references: of the rejected ones; "
            "optionally chosen_lengths and rejected_lengths.",
            predictions=datasets.Value("float64"),
            references=datasets.Value("float64"),
        )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        chosen_lengths: Sequence[float] | None = None,
        rejected_lengths: Sequence[float] | None = None,
    ) -> dict[str, Any]:
        _finite(predictions, references)
        return estimators.pairwise_accuracy(
            predictions, references, chosen_lengths, rejected_lengths
        )


class ExpectedCalibrationError(evaluate.Metric):  # type: ignore[misc]
    """How far stated probabilities are from what happens, by bins of equal width."""

    def _info(self) -> Any:
        return _info(
            "Expected calibration error: |mean probability - share of ones|, averaged over bins.",
            "predictions: probabilities, such as the sigmoid of a reward model's margin; "
            "references: 1 if it happened, else 0; bins: how many (10).",
            _GUO,
            predictions=datasets.Value("float64"),
            references=datasets.Value("float64"),
        )

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float], bins: int = 10
    ) -> dict[str, Any]:
        error = estimators.expected_calibration_error(predictions, references, bins)
        return {"expected_calibration_error": error}


def _info(description: str, inputs: str, citation: str = "", **features: Any) -> Any:
    return evaluate.MetricInfo(
        description=description,
        citation=citation,
        inputs_description=inputs,
        features=datasets.Features(features),
    )


def _finite(*columns: Sequence[float]) -> None:
    for column in columns:
        if not np.isfinite(np.asarray(column, dtype=np.float64)).all():
            raise ValueError("a score is missing or not finite; leave such pairs out and say so")
