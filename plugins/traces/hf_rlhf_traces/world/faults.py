"""Rows that are broken on purpose, as files in the wild are, to see that none is lost silently."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Row = dict[str, Any]


def _truncated(row: Row, _: str) -> str:
    line = _line(row)
    return line[: len(line) // 2]


def _no_trace(row: Row, _: str) -> str:
    return _line({name: value for name, value in row.items() if name != "trace"})


def _no_documents(row: Row, _: str) -> str:
    steps = [
        {"type": "search_result", "documents": None} if one["type"] == "search_result" else one
        for one in row["trace"]
    ]
    return _line({**row, "trace": steps})


def _no_results(row: Row, _: str) -> str:
    kept = [one for one in row["trace"] if one["type"] != "search_result"]
    return _line({**row, "trace": kept})


def _duplicate_id(row: Row, last: str) -> str:
    return _line({**row, "id": last or row["id"]})


KINDS: dict[str, Callable[[Row, str], str]] = {
    "truncated": _truncated,
    "no_trace": _no_trace,
    "no_documents": _no_documents,
    "no_results": _no_results,
    "duplicate_id": _duplicate_id,
}
"""Name of a fault -> what makes the line of a row with it; the second argument is the id before."""


def lines(rows: Iterable[Row], share: float, seed: int, made: dict[str, int]) -> Iterator[str]:
    """Yield rows as lines of JSON, a share of them broken, the kinds in turn; count in `made`."""
    rng = random.Random(f"faults/{seed}")
    kinds = list(KINDS)
    last, number = "", 0
    for row in rows:
        # Without a row before it there is no id to be the same as.
        if last and rng.random() < share:
            kind = kinds[number % len(kinds)]
            number += 1
            made[kind] = made.get(kind, 0) + 1
            yield KINDS[kind](row, last)
        else:
            last = row["id"]
            yield _line(row)


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False)
