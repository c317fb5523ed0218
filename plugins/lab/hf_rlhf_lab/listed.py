"""Split rows with lists of `chosen` and `rejected` texts, the format of RewardBench 2."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from hf_rlhf.data import Row
from hf_rlhf.errors import DataError

ITEM = "item_number"
"""The column with the index of a response's source row."""
_SIDES = {"chosen": 1.0, "rejected": 0.0}


def has_lists(row: Row) -> bool:
    """Whether a row has lists of texts as `chosen` and `rejected`."""
    sides = [row.values.get(side) for side in _SIDES]
    return all(isinstance(texts, list) and texts for texts in sides) and all(
        isinstance(text, str) for texts in sides for text in texts or ()
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
