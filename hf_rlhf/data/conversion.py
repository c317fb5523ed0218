"""Convert and split the rows of a source in memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Generic

from hf_rlhf.data.rejected import BadRow, Converted, convert_rows, format_counts
from hf_rlhf.data.sources import Row, Rows, Source
from hf_rlhf.data.splits import Split, held_out_mask, normalised_text, text_hash
from hf_rlhf.errors import DataError


@dataclass
class ConvertedSource(Generic[Converted]):
    """The usable rows of a source, and the number of dropped rows."""

    train: list[Converted]
    test: list[Converted]
    dropped: Counter[str]
    """Reason -> rows."""
    shared: int
    """How many texts are in both splits."""


def convert_source(
    source: Source,
    convert: Callable[[Row, str], Converted],
    split: Split,
    *,
    text: Callable[[Converted], str],
    stops: Callable[[BadRow], bool],
) -> ConvertedSource[Converted]:
    """Convert all rows of a source, and hold out its test split or some of its texts.

    Args:
        source: as `read_rows` returns it.
        convert: from a row, and the id to use if it has none. Raises BadRow if the row is unusable.
        split: which rows train and which are held out.
        text: of a converted row, such as its question; rows with equal texts share a split.
        stops: whether a bad row is raised instead of dropped and counted.

    Raises:
        DataError: a file cannot be read further, or a split has no rows left.
        BadRow: with `stops`.
    """
    import numpy as np

    dropped: Counter[str] = Counter()

    def usable(rows: Rows, prefix: str) -> list[Converted]:
        errors: list[BadRow] = []

        def reject(row: Row, number: int, error: BadRow) -> None:
            if stops(error):
                raise error
            dropped[error.reason] += 1
            errors.append(error)

        converted = list(
            convert_rows(rows, lambda row, number: convert(row, f"{prefix}-{number}"), reject)
        )
        if not converted:
            raise DataError(
                f"{rows.name}: all {len(errors)} rows were dropped ({format_counts(dropped)}). "
                f"The last one: {errors[-1]}"
            ) from errors[-1]
        return converted

    rows, held_out = split.sources(source)
    train = usable(rows, "row")
    if held_out is not None:
        test = usable(held_out, "held-out")
    else:
        prompts = np.array([text_hash(text(row)) for row in train], np.uint64)
        mask = held_out_mask(prompts, np.ones(len(train), bool), split).tolist()
        test = list(compress(train, mask))
        train = list(compress(train, map(not_, mask)))
    texts = [{normalised_text(text(row)) for row in side} for side in (train, test)]
    return ConvertedSource(train, test, dropped, len(texts[0] & texts[1]))
