"""Check graded responses, and measure how well scores agree with the grades."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from hf_rlhf.contracts import Score
from hf_rlhf.errors import Problem
from hf_rlhf_lab.feedback.rubric_grades import HIGHEST, LOWEST

Array = NDArray[np.float64]


def criteria(rows: Any) -> list[str]:
    """Return the names of the criteria, in the order of the column `grades`."""
    return list(rows.features["grades"])


def grade_problems(split: str, rows: Any, names: Sequence[str]) -> Iterator[Problem]:
    """Yield the first row that lacks an integer grade from 1 to 5 for a criterion."""
    if not hasattr(rows.features["grades"], "items"):
        what = f"`grades` of {split} is {rows.features['grades']}, not {{criterion: grade}}."
        yield Problem("dataset", what, "`hf-rlhf data rubric_grades` writes such rows.")
        return
    if missing := sorted(set(names) ^ set(criteria(rows))):
        what = f"the criteria of {split} differ from those of train: {', '.join(missing)}."
        yield Problem("dataset", what, "Grade all rows by one rubric.")
        return
    for index, grades in enumerate(rows["grades"]):
        for name, grade in (grades or dict.fromkeys(names)).items():
            if grade not in range(LOWEST, HIGHEST + 1) or isinstance(grade, bool):
                what = f"row {index} of {split}: the grade of {name!r} is {grade!r}."
                yield Problem("dataset", what, f"Expected an integer, {LOWEST} to {HIGHEST}.")
                return


def targets(rows: Any) -> Array:
    """Return the grades divided by 5, shape (rows, criteria); their mean is the target."""
    names = criteria(rows)
    values = [[grades[name] for name in names] for grades in rows["grades"]]
    return np.array(values, dtype=np.float64) / HIGHEST


def row_metrics(scores: Sequence[float], grades: Array) -> list[Mapping[str, Score]]:
    """Return the metrics of each row; their means are the metrics of all rows.

    Args:
        scores: of the model.
        grades: targets, shape (rows,).

    `squared_error`; `rank_agreement`, the product of the standardised ranks of score and grade,
    with Spearman's correlation as its mean; `pair_accuracy`, the share of rows with another grade
    that are ordered correctly, ties half.
    """
    values = np.asarray(scores, dtype=np.float64)
    product = _standard_ranks(values) * _standard_ranks(grades)
    return [
        {
            "pair_accuracy": _share_on_the_right_side(value - values, grade - grades),
            "rank_agreement": None if np.isnan(agreement) else float(agreement),
            "squared_error": float((value - grade) ** 2),
        }
        for value, grade, agreement in zip(values, grades, product, strict=True)
    ]


def _share_on_the_right_side(scores: Array, grades: Array) -> Score:
    """Return how often two differences have the same sign, where the second is not 0."""
    different = grades != 0
    signs = np.sign(scores[different]) * np.sign(grades[different])
    return float((signs + 1).mean() / 2) if different.any() else None


def _standard_ranks(values: Array) -> Array:
    """Return ranks with mean 0 and variance 1; NaN where all values are equal."""
    ranks = rankdata(values)
    spread = ranks.std()
    return np.asarray((ranks - ranks.mean()) / (spread if spread > 0 else np.nan))
