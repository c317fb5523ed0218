"""Rows with lists of `chosen` and `rejected` texts, as RewardBench 2 has them, one by one."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hf_rlhf.data import Row
from hf_rlhf.errors import DataError

ITEM = "item_number"
"""The column with the number of the row that a response comes from."""
_SIDES = {"chosen": 1.0, "rejected": 0.0}


def has_lists(row: Row) -> bool:
    """Whether a row has lists of texts as `chosen` and `rejected`."""
    sides = [row.values.get(side) for side in _SIDES]
    return all(isinstance(texts, list) and texts for texts in sides) and all(
        isinstance(text, str) for texts in sides for text in texts or ()
    )


def one_by_one(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a graded row for each response of rows with lists, 1 or 0; other rows as they are.

    Raises DataError for a row without lists after one with them.
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
