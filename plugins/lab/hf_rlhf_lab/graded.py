"""`graded`: responses with a grade, or with the labels of several graders."""

import math
from typing import Any

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row, read_rows
from hf_rlhf.errors import DataError, did_you_mean

FIELDS = ("prompt", "completion", "grade")


def graded(
    path: str,
    *,
    columns: dict[str, str] | None = None,
    revision: str | None = None,
    subset: str | None = None,
) -> Loaded:
    """Load responses with a grade, by which a reward is validated.

    Args:
        path: a file, a folder or a Hub dataset with `prompt`, `completion` and `grade`: a finite
            number, higher for a better response, or a list with one number per label.
        columns: names wanted -> names in the source, such as `{completion: response}`.
        revision: of a Hub dataset, a branch, tag or commit.
        subset: the configuration of a Hub dataset.

    Returns:
        The source's splits with these columns, `grade` as a list, and all others.

    Raises:
        DataError: with file, row and field.
    """
    from datasets import Dataset, DatasetDict

    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    splits = {
        name: [{**row.values, "grade": _labels(row)} for row in rows]
        for name, rows in source.splits.items()
    }
    if empty := [name for name, rows in splits.items() if not rows]:
        raise DataError(f"{path}: split {empty[0]!r} has no rows.")
    dataset = DatasetDict({name: Dataset.from_list(rows) for name, rows in splits.items()})
    return Loaded(dataset, {"rows": dataset.num_rows})


def _labels(row: Row) -> list[float]:
    for name in FIELDS:
        if name not in row.values:
            hint = did_you_mean(name, row.values)
            fix = "Rename columns with `columns: {completion: NAME}`."
            raise DataError(f"{row.where}: has no field {name!r}{hint}. {fix}")
    value: Any = row.values["grade"]
    labels = value if isinstance(value, list) else [value]
    if not labels or not all(_is_number(label) for label in labels):
        raise DataError(
            f"{row.at('grade')} is {value!r}; expected a finite number, or a list of them."
        )
    return [float(label) for label in labels]


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value)
