"""From readable rows to the splits that train: what both refiner adapters share.

Rows are converted one by one; what is dropped is counted by reason; held-out rows are the
source's own, or cut off by question; and the report says what became of everything.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import Row, Rows, Source, rename
from hf_rlhf.distributed import rank
from hf_rlhf.errors import DataError
from hf_rlhf_refiner.prompt import BadRow, Prompt

OnBad = Literal["stop", "drop"]

HELD_OUT_SPLITS = ("test", "validation")
"""Splits of a source that are taken for held-out evaluation: the first that there is."""

DEFAULT_TEST_SHARE = 0.1

_HIDDEN = ("_turns", "_left_out")
"""How counts of the report end that say what of a row is not in its prompt."""


class Rubric(TypedDict):
    """One thing to check in an answer, and how much it counts."""

    criterion: str
    weight: float


class RefinerRow(TypedDict):
    """The columns that the trainer and the refiner's rewards read."""

    prompt: list[dict[str, str]]
    question: str
    sources: list[Any]
    positive_rubrics: list[Rubric]
    negative_rubrics: list[Rubric]
    row_id: str


@dataclass(frozen=True)
class Converted:
    """A row ready to train on; what was done to its prompt; and columns beyond the usual."""

    row: RefinerRow
    prompt: Prompt
    extra: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """Anything else that the report should add up, by name."""


Convert = Callable[[Row, str], Converted]
"""(row, id to use if it has none) -> the converted row. Raises BadRow."""


@dataclass(frozen=True)
class Splitting:
    """Where held-out rows come from.

    With neither `test_rows` nor `test_share`, the source's `test` (or `validation`) split is held
    out; a source without one gives a tenth of its questions. With either, they are cut from
    `split`. Rows that ask the same question always stay on one side.
    """

    split: str | None = None
    test_rows: int | None = None
    test_share: float | None = None
    seed: int = 42

    def __post_init__(self) -> None:
        if self.test_rows is not None and self.test_share is not None:
            raise DataError("`test_rows` and `test_share` are both given. Leave one out.")
        if self.test_rows is not None and self.test_rows < 1:
            raise DataError(f"`test_rows` is {self.test_rows}, expected at least 1.")
        if self.test_share is not None and not 0 < self.test_share < 1:
            raise DataError(f"`test_share` is {self.test_share}, expected between 0 and 1.")

    def train_rows(self, source: Source) -> Rows:
        """Return the rows to train on: the named split, `train`, or the only one there is."""
        if self.split is None and len(source.splits) == 1:
            return next(iter(source.splits.values()))
        return source.split(self.split or "train")

    def held_out_rows(self, source: Source) -> Rows | None:
        """Return the source's own held-out rows, unless they are to be cut from `split`."""
        if self.test_rows is not None or self.test_share is not None:
            return None
        names = [name for name in HELD_OUT_SPLITS if name in source.splits]
        train = self.train_rows(source)
        return next((source.splits[n] for n in names if source.splits[n] is not train), None)

    def cut(self, rows: Sequence[Converted]) -> tuple[list[Converted], list[Converted]]:
        """Divide rows into train and test by question. Raise DataError if nothing is left."""
        questions = sorted({_key(row) for row in rows})
        random.Random(self.seed).shuffle(questions)
        share = DEFAULT_TEST_SHARE if self.test_share is None else self.test_share
        wanted = max(1, round(len(rows) * share)) if self.test_rows is None else self.test_rows
        sizes = Counter(_key(row) for row in rows)
        held: set[str] = set()
        while questions and sum(sizes[question] for question in held) < wanted:
            held.add(questions.pop())
        if not questions:
            if self.test_rows is None and self.test_share is None:
                return list(rows), []
            raise DataError(
                f"{wanted} of {len(rows)} usable rows ({len(sizes)} different questions) cannot be "
                "held out and leave any to train on. Hold out fewer, or bring more rows."
            )
        train = [row for row in rows if _key(row) not in held]
        return train, [row for row in rows if _key(row) in held]


@dataclass
class _Tally:
    """Converts rows, and counts."""

    convert: Convert
    on_bad_row: OnBad
    on_long_prompt: OnBad
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def _mapped(row: Row, columns: Mapping[str, str]) -> Row:
        try:
            return rename(row, columns)
        except DataError as error:
            raise BadRow("lacks_mapped_column", str(error)) from error

    def converted(self, rows: Rows, prefix: str) -> list[Converted]:
        before, kept = self.read, []
        for number, row in enumerate(rows.with_faults(), start=1):
            self.read += 1
            try:
                if row.fault is not None:
                    raise BadRow("unreadable", str(row.fault))
                row = self._mapped(row, rows.columns)
                kept.append(self.convert(row, f"{prefix}-{number}"))
            except BadRow as error:
                long = error.reason == "prompt_too_long"
                if (self.on_long_prompt if long else self.on_bad_row) == "stop":
                    raise
                self.dropped[error.reason] += 1
                last = error
        if not kept:
            raise DataError(
                f"{rows.name}: all {self.read - before} rows were dropped "
                f"({_listed(self.dropped)}). The last one: {last}"
            ) from last
        return kept


def assemble(
    source: Source,
    convert: Convert,
    splitting: Splitting,
    *,
    on_bad_row: OnBad = "stop",
    on_long_prompt: OnBad = "drop",
) -> Loaded:
    """Convert all rows of a source and return train and test splits with a report.

    A file that cannot be read on stops in any case; `on_bad_row` is about single rows that cannot
    be read, or not be used.
    """
    tally = _Tally(convert, on_bad_row, on_long_prompt)
    train_rows, held_rows = splitting.train_rows(source), splitting.held_out_rows(source)
    train = tally.converted(train_rows, "row")
    if held_rows is not None:
        test, origin = tally.converted(held_rows, "held-out"), held_rows.name
    else:
        train, test = splitting.cut(train)
        origin = f"cut from {train_rows.name} by question, seed {splitting.seed}"
    report: dict[str, Any] = {
        "source": source.name,
        "commit": source.commit,
        "rows_read": tally.read,
        "kept": len(train) + len(test),
        "dropped": dict(tally.dropped),
        **_prompt_report([*train, *test]),
        "splits": {"train": len(train), "test": len(test)},
        "held_out": origin if test else "nothing",
        "questions_in_both_splits": len({_key(row) for row in train} & {_key(row) for row in test}),
    }
    _show(report)
    return Loaded(_dataset(train, test), report)


def _show(report: Mapping[str, Any]) -> None:
    """Print what was left out, of rows and of what the prompt shows of them."""
    counts = dict(report["dropped"])
    line = f"{report['source']}: {report['kept']} of {report['rows_read']} rows kept"
    if counts:
        line += f"; left out: {_listed(counts)}"
    hidden = {name: n for name, n in report.items() if name.endswith(_HIDDEN) and n}
    if hidden:
        line += f"; not shown in prompts: {_listed(hidden)}"
    if rank() == 0 and (counts or hidden):
        print(f"{line}.", file=sys.stderr, flush=True)


def _prompt_report(rows: Sequence[Converted]) -> dict[str, Any]:
    import numpy as np

    tokens = [row.prompt.tokens for row in rows]
    levels = np.percentile(tokens, [0, 50, 95, 100], method="nearest")
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row.counts)
    return {
        "prompts_shortened": sum(
            bool(row.prompt.results_dropped or row.prompt.results_cut) for row in rows
        ),
        "tool_results_shown": sum(len(row.prompt.results) for row in rows),
        "tool_results_dropped": sum(row.prompt.results_dropped for row in rows),
        "tool_results_cut": sum(row.prompt.results_cut for row in rows),
        **counts,
        "prompt_tokens": dict(zip(("min", "median", "p95", "max"), map(int, levels), strict=True)),
    }


def _dataset(train: Sequence[Converted], test: Sequence[Converted]) -> Any:
    from datasets import Dataset, DatasetDict, Features, List, Value

    text = Value("string")
    rubrics = List({"criterion": text, "weight": Value("float64")})
    columns = {
        "prompt": List({"role": text, "content": text}),
        "question": text,
        "sources": List({"id": text, "text": text}),
        "positive_rubrics": rubrics,
        "negative_rubrics": rubrics,
        "row_id": text,
        **dict.fromkeys(train[0].extra, text),
    }
    features = Features(columns)

    def made(rows: Iterable[Converted]) -> Any:
        return Dataset.from_list([{**row.row, **row.extra} for row in rows], features=features)

    return DatasetDict({"train": made(train), **({"test": made(test)} if test else {})})


def _key(row: Converted) -> str:
    return " ".join(row.row["question"].casefold().split())


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
