"""Load responses with a grade or the labels of several graders: `graded`.

Rows with lists of `chosen` and `rejected` texts, as RewardBench 2 has them, become a graded row per
response.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hf_rlhf.contracts import LARGEST_SCORE, Loaded
from hf_rlhf.data import Row, describe_value, read_rows
from hf_rlhf.errors import DataError, did_you_mean

FIELDS = ("prompt", "completion", "grade")
ITEM = "item_number"
"""The column with the index of a response's source row."""
_SIDES = {"chosen": 1.0, "rejected": 0.0}


def graded(
    path: str,
    *,
    columns: dict[str, str] | None = None,
    revision: str | None = None,
    subset: str | None = None,
) -> Loaded:
    """Load responses with a grade, for validating a reward.

    Args:
        path: a file, a folder or a Hub dataset with `prompt`, `completion` and `grade`: a finite
            number, higher for a better response, or a list with one number per label. Or with
            `prompt`, `chosen` and `rejected`, lists of texts, as RewardBench 2 has them.
        columns: column -> name in the source, for example `{completion: response}`.
        revision: of a Hub dataset, a branch, tag or commit.
        subset: the configuration of a Hub dataset.

    Returns:
        The source's splits with these columns, `grade` as a list, and all others.

    Raises:
        DataError: with file, row and field.
    """
    from datasets import Dataset, DatasetDict

    source = read_rows(path, revision=revision, subset=subset, columns=columns)
    splits = {name: list(one_by_one(rows)) for name, rows in source.splits.items()}
    if empty := [name for name, rows in splits.items() if not rows]:
        raise DataError(f"{path}: split {empty[0]!r} has no rows.")
    columns_of = {name: _columns(rows) for name, rows in splits.items()}
    dataset = DatasetDict({name: Dataset.from_dict(each) for name, each in columns_of.items()})
    return Loaded(dataset, {"rows": dataset.num_rows})


def has_lists(row: Row) -> bool:
    """Whether a row has lists of texts as `chosen` and `rejected`."""
    return all(
        isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts)
        for texts in map(row.values.get, _SIDES)
    )


def one_by_one(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a graded row (1 or 0) per response for rows with lists; other rows unchanged.

    Raises DataError if only some rows have lists.
    """
    listed = False
    for number, row in enumerate(rows):
        if not has_lists(row):
            if listed:
                expected = "expected lists of texts under `chosen` and `rejected`, as before"
                raise DataError(f"{row.where}: {expected}. Correct the row, or remove it.")
            yield row
            continue
        listed = True
        rest = {name: value for name, value in row.values.items() if name not in _SIDES}
        for side, grade in _SIDES.items():
            for text in row.values[side]:
                values = {**rest, "completion": text, "grade": grade, ITEM: number}
                yield replace(row, values=values)


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the columns of the rows, with null for missing values and `grade` as lists."""
    import pyarrow

    labels = [_labels(row) for row in rows]
    for row in rows:
        for name in ("prompt", "completion"):
            if not _is_text(value := row.values[name]):
                raise DataError(
                    f"{row.at(name)} is {describe_value(value)}; expected a text, or a list of "
                    "messages with `role` and `content`. Correct the row, or remove it."
                )
    names = dict.fromkeys(name for row in rows for name in row.values)
    columns = {name: [row.values.get(name) for row in rows] for name in names if name != "grade"}
    for name, values in columns.items():
        try:
            pyarrow.array(values)
        except (pyarrow.ArrowException, OverflowError) as error:
            own = [(row, type(v)) for row, v in zip(rows, values, strict=True) if v is not None]
            row = next((row for row, kind in own if kind is not own[0][1]), own[0][0])
            text = f"{row.at(name)} does not fit into a column with the others ({error})."
            raise DataError(f"{text} Give all rows one type.") from error
    return {**columns, "grade": labels}


def _is_text(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in value)
    )


def _labels(row: Row) -> list[float]:
    for name in FIELDS:
        if name not in row.values:
            hint = did_you_mean(name, row.values)
            fix = "Rename columns with `columns: {completion: NAME}`."
            raise DataError(f"{row.where}: has no field {name!r}{hint}. {fix}")
    value: Any = row.values["grade"]
    labels = value if isinstance(value, list) else [value]
    wrong = [label for label in labels if not _is_number(label)]
    if wrong or not labels:
        found = describe_value(wrong[0] if wrong else value)
        expected = "a number that fits into float32, or a list of them"
        raise DataError(f"{row.at('grade')} is or holds {found}; expected {expected}.")
    return [float(label) for label in labels]


def _is_number(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= LARGEST_SCORE
