"""Unusable rows: counted by reason, listed in a file, and limited to a share."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hf_rlhf.data.sources import Row, Rows, rename
from hf_rlhf.data.values import describe_value
from hf_rlhf.errors import DataError
from hf_rlhf.storage.files import atomic_write_text

_EXAMPLES = 3

Converted = TypeVar("Converted")


class BadRow(DataError):
    """A row that can be read but not used.

    `reason` is the short name under which rows are counted. The message begins with the row's file
    and line and states what was expected.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def wrong_type(cls, column: str, where: str, value: Any, expected: str) -> "BadRow":
        """Return the error for a value of the wrong type. `where` comes from `Row.at`."""
        problem = f"{where}: is {describe_value(value)}, expected {expected}"
        return cls(f"wrong_type:{column}", problem)


def convert_rows(
    rows: Rows,
    convert: Callable[[Row, int], Converted],
    reject: Callable[[Row, int, BadRow], None],
) -> Iterator[Converted]:
    """Rename the columns of each row and yield its conversion.

    Args:
        rows: the rows of a split.
        convert: from a row and its number, counted from 1. Raises BadRow if the row is unusable.
        reject: takes the rows that cannot be read, renamed or converted; it may raise.

    Raises:
        DataError: a file cannot be read further, or `reject` raises.
    """
    for number, row in enumerate(rows.with_faults(), 1):
        try:
            converted = convert(renamed(row, rows.columns), number)
        except BadRow as error:
            reject(row, number, error)
        else:
            yield converted


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """Rename the columns of a row. Raises BadRow if it is unreadable or lacks a column."""
    if row.fault is not None:
        raise BadRow("unreadable", str(row.fault))
    try:
        return rename(row, columns)
    except DataError as error:
        raise BadRow("lacks_mapped_column", str(error)) from error


class RejectedRows:
    """Counts bad rows by reason, and lists them in a JSON Lines file when all rows are read."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.reasons: Counter[str] = Counter()
        self._examples: list[str] = []
        self._lines: list[str] = []

    def __enter__(self) -> "RejectedRows":
        return self

    def __exit__(self, *error: Any) -> None:
        if self.path is not None and error[0] is None:
            if self._lines:
                atomic_write_text(self.path, "".join(self._lines))
            else:
                self.path.unlink(missing_ok=True)  # of an earlier run

    def add(self, row: Row, number: int, error: BadRow) -> None:
        """Count and list a row. `number` counts the rows of its split from 1."""
        self.reasons[error.reason] += 1
        if len(self._examples) < _EXAMPLES:
            self._examples.append(str(error))
        if self.path is not None:
            entry = {
                "where": row.where,
                "row": number,
                "reason": error.reason,
                "message": str(error),
                "values": row.values,
            }
            line = json.dumps(entry, ensure_ascii=False, default=str) + "\n"
            self._lines.append(line.encode("utf-8", "backslashreplace").decode("utf-8"))

    def check_share(self, name: str, rows_read: int, max_share: float) -> None:
        """Raise DataError if more than `max_share` of the rows of `name`, or all, are bad."""
        count = self.reasons.total()
        if count < rows_read and count <= max_share * rows_read:
            return
        examples = "".join(f"\n  {message}" for message in self._examples)
        raise DataError(
            f"{name}: {count} of {rows_read} rows ({count / rows_read:.1%}) cannot be used "
            f"({format_counts(self.reasons)}), `max_rejected_share` is {max_share:.1%}. Correct "
            f"them ({self.path or 'rejected_rows.jsonl of the run'} lists all), or raise the share "
            f"if others are left. The first:{examples}"
        )


def format_counts(reasons: Mapping[str, int]) -> str:
    """Return reasons with their counts, the most frequent first: `empty_turn: 3, unfit:x: 1`."""
    return ", ".join(f"{reason}: {n}" for reason, n in Counter(reasons).most_common())
