"""Convert readable rows to training splits, for both refiner adapters.

Rows are converted independently and dropped rows are counted by reason. Held-out rows come from the
source's own test split or are split off the training rows by question. The report counts them.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from pydantic import (
    AliasChoices,
    BaseModel,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hf_rlhf.contracts import Loaded
from hf_rlhf.data import BadRow, Row, Source, Split, convert_source, format_counts
from hf_rlhf.distributed import rank
from hf_rlhf.formatting import visible
from hf_rlhf_refiner.prompt import Prompt

OnBad = Literal["stop", "drop"]

CRITERION_KEYS = ("criterion", "description", "rubric", "criteria", "text", "title")
"""Keys for a criterion in common data sets; the first present key counts."""

_HIDDEN = ("earlier_turns", "later_turns", "document_fields_left_out")
"""Prefix of the report's counts of row content that the prompt lacks."""


class Rubric(TypedDict):
    """A criterion for an answer, and its weight."""

    criterion: str
    weight: float


class _Rubric(BaseModel):
    criterion: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        validation_alias=AliasChoices(*CRITERION_KEYS)
    )
    weight: float = Field(
        1.0, strict=True, allow_inf_nan=False, validation_alias=AliasChoices("weight", "severity")
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, item: Any) -> Any:
        """Read a text as a criterion; a table gives an object the keys of all others, as null."""
        if isinstance(item, dict):
            return {key: value for key, value in item.items() if value is not None}
        return {"criterion": item} if isinstance(item, str) else item


_RUBRICS = TypeAdapter(list[_Rubric] | None)


def read_rubrics(value: Any, where: str, column: str, *, negative: bool = False) -> list[Rubric]:
    """Return the rubrics in a value, a list or its JSON text. Raises BadRow.

    A rubric is a text, or an object with a key of `CRITERION_KEYS` and a weight above 0 (default
    1). Of `negative` rubrics, a negative weight counts by its size, as some data sets have it.
    """
    expected = (
        'Expected a list of texts, or of objects like {"criterion": "States the year.", "weight": '
        "1.0} with a weight above 0."
    )
    try:
        if isinstance(value, str):
            found = _RUBRICS.validate_json(value.strip() or "null") or []
        else:
            found = _RUBRICS.validate_python(value) or []
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f", item {part + 1}" for part in first["loc"][:1] if isinstance(part, int))
        problem = f"{where}{place}: {first['msg']}, not {first['input']!r:.60}. {expected}"
        raise BadRow(f"wrong_type:{column}", problem) from error
    weights = [abs(each.weight) if negative else each.weight for each in found]
    if (worst := min(weights, default=1.0)) <= 0:
        place = f", item {weights.index(worst) + 1}"
        raise BadRow(f"wrong_type:{column}", f"{where}{place}: the weight is {worst}. {expected}")
    return [
        Rubric(criterion=each.criterion, weight=weight)
        for each, weight in zip(found, weights, strict=True)
    ]


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
    """A row ready for training, the changes to its prompt, and extra columns."""

    row: RefinerRow
    prompt: Prompt
    extra: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further counts for the report, by name."""


Convert = Callable[[Row, str], Converted]
"""(row, default id) -> the converted row. Raises BadRow."""


def assemble(
    source: Source,
    convert: Convert,
    split: Split,
    *,
    on_bad_row: OnBad = "stop",
    on_long_prompt: OnBad = "drop",
) -> Loaded:
    """Convert all rows of a source and return train and test splits with a report.

    An unreadable file always stops the run; `on_bad_row` applies to single rows that cannot be read
    or used.
    """

    def stops(error: BadRow) -> bool:
        is_long = error.reason == "prompt_too_long"
        return (on_long_prompt if is_long else on_bad_row) == "stop"

    converted = convert_source(
        source, convert, split, text=lambda row: row.row["question"], stops=stops
    )
    train, test = converted.train, converted.test
    usable = len(train) + len(test)
    report: dict[str, Any] = {
        "source": source.name,
        "commit": source.commit,
        "rows_read": usable + converted.dropped.total(),
        "kept": usable,
        "dropped": dict(converted.dropped),
        **_prompt_report([*train, *test]),
        "splits": {"train": len(train), "test": len(test)},
        "held_out": split.describe(source, "question") if test else "nothing",
        "questions_in_both_splits": converted.shared,
    }
    _print(report)
    return Loaded(_dataset(train, test), report)


def _print(report: Mapping[str, Any]) -> None:
    """Print the counts of dropped rows and of prompt content that was left out."""
    counts = dict(report["dropped"])
    line = f"{report['source']}: {report['kept']} of {report['rows_read']} rows kept"
    if counts:
        line += f"; left out: {format_counts(counts)}"
    hidden = {name: n for name, n in report.items() if name.startswith(_HIDDEN) and n}
    if hidden:
        line += f"; not shown in prompts: {format_counts(hidden)}"
    if rank() == 0 and (counts or hidden):
        print(visible(f"{line}."), file=sys.stderr, flush=True)


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

    def dataset(rows: Iterable[Converted]) -> Any:
        return Dataset.from_list([{**row.row, **row.extra} for row in rows], features=features)

    return DatasetDict({"train": dataset(train), **({"test": dataset(test)} if test else {})})
