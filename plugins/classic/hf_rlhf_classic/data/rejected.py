"""The rows that cannot be used: listed in a file with place and reason, and never too many."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from hf_rlhf.data import Row
from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.values import BadRow

LONGEST = 1000
"""Characters of a text in the list; the row itself stands where `where` says."""
SHOWN = 3


class Rejected:
    """Counts bad rows by reason, and lists them in a JSON Lines file that appears when whole."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.reasons: Counter[str] = Counter()
        self._first: list[str] = []
        self._file: IO[str] | None = None
        self._id = uuid4().hex

    def __enter__(self) -> "Rejected":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:  # not finished: nothing half-written is left
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    @property
    def _temporary(self) -> Path:
        assert self.path is not None
        # As the core names its own, so that it clears this one, too, after a crash.
        return self.path.with_name(f".{self.path.name}.{self._id}.tmp")

    def add(self, row: Row, number: int, bad: BadRow) -> None:
        """Count one row and list it."""
        self.reasons[bad.reason] += 1
        if len(self._first) < SHOWN:
            self._first.append(str(bad))
        if self.path is None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("w", encoding="utf-8", errors="backslashreplace")
        line = {
            "where": row.where,
            "row": number,
            "reason": bad.reason,
            "said": str(bad),
            "values": _short(row.values),
        }
        self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def finish(self) -> None:
        """Put the list where it belongs; a list of an earlier run is removed if there is none."""
        if self.path is None:
            return
        if self._file is None:
            self.path.unlink(missing_ok=True)
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        os.replace(self._temporary, self.path)

    def judge(self, name: str, read: int, most: float) -> None:
        """Raise DataError if more than the share `most` of `read` rows, or all, were rejected."""
        count = self.reasons.total()
        if count < read and count <= most * read:
            return
        listed = counted(self.reasons)
        where = " The first process of a run lists them all in rejected_rows.jsonl."
        if self.path:
            where = f" All are listed in {self.path}."
        over = f"more than `max_rejected_share` ({most:.1%}) allows"
        if count == read:
            over = "so none is left"
        first = "".join(f"\n  {story}" for story in self._first)
        raise DataError(
            f"{name}: {count} of {read} rows ({count / read:.1%}) cannot be used, {over} "
            f"({listed}).{where} Mend them, or raise the share. The first:{first}"
        )


def counted(reasons: Mapping[str, int]) -> str:
    """Say reasons with their counts, the most frequent first."""
    return ", ".join(f"{reason}: {n}" for reason, n in Counter(reasons).most_common())


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= LONGEST else f"{value[:LONGEST]}... ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {str(key): _short(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(one) for one in value]
    return value
