"""Measure how well a model judges the steps of held-out solutions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_rlhf.contracts import Score

THRESHOLD = 0.5
_SMALLEST = 1e-12


def step_metrics(scores: Sequence[float], labels: Sequence[bool]) -> dict[str, Score]:
    """Return the metrics of a solution's step scores."""
    flagged = first(score < THRESHOLD for score in scores)
    wrong = first(not label for label in labels)
    pairs = list(zip(scores, labels, strict=True))
    accuracy = sum((score >= THRESHOLD) == label for score, label in pairs) / len(pairs)
    return {
        "step_accuracy": accuracy,
        "step_loss": sum(_loss(score, label) for score, label in pairs) / len(pairs),
        "first_error": None if wrong is None else float(flagged == wrong),
        "false_alarms": None if wrong is not None else float(flagged is not None),
        "lowest_step": min(scores),
    }


def outcome_metrics(scores: Sequence[float], labels: Sequence[bool]) -> dict[str, Score]:
    """Return the metrics of a solution's outcome score."""
    score, label = scores[0], labels[0]
    accuracy = float((score >= THRESHOLD) == label)
    return {"outcome_accuracy": accuracy, "outcome_loss": _loss(score, label), "score": score}


def first(values: Any) -> int | None:
    """Return the index of the first true value."""
    return next((position for position, value in enumerate(values) if value), None)


def _loss(score: float, label: bool) -> float:
    return -math.log(max(score if label else 1 - score, _SMALLEST))


def with_auc(
    rows: Sequence[Mapping[str, Score]], name: str, good: Sequence[bool]
) -> list[dict[str, Score]]:
    """Add `auc` to each bad row: the share of good rows with a higher score; ties count half.

    Its mean is the area under the ROC curve (Hanley and McNeil 1982).
    """
    import numpy as np

    scores = [row[name] for row in rows]
    pairs = zip(scores, good, strict=True)
    others = np.sort([score for score, is_good in pairs if is_good and score is not None])

    def auc(score: Score, is_good: bool) -> Score:
        if is_good or score is None or not len(others):
            return None
        above, tied_or_above = (np.searchsorted(others, score, side) for side in ("right", "left"))
        return float(1 - (above + tied_or_above) / (2 * len(others)))

    return [
        {**row, "auc": auc(score, is_good)}
        for row, score, is_good in zip(rows, scores, good, strict=True)
    ]
