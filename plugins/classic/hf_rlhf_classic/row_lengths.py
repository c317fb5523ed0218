"""Predict how `max_length` affects rows in TRL's trainers, before weights load.

TRL's `RewardTrainer` drops a pair with a longer text. `DPOTrainer` drops a pair whose prompt alone
is as long, and truncates other texts. `SFTTrainer` truncates, and drops rows without a trained
token left.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from hf_rlhf.contracts import RowCounts
from hf_rlhf.runs import Run
from hf_rlhf_classic.checks import splits
from hf_rlhf_classic.encoding import Encoded, common_start, encode_batch, ended, joined

T = TypeVar("T")
_KNOWN: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()
"""Results for the rows of a data set, which are encoded once for checks and reports."""
_AT_ONCE = 256
SIDES = ("chosen", "rejected")


def once(rows: Any, key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of `make` for `rows`, computed once per `key`."""
    known = _KNOWN.setdefault(rows, {})
    if key not in known:
        known[key] = make()
    result: T = known[key]
    return result


def reward_counts(run: Run) -> Mapping[str, RowCounts]:
    """Return how many pairs of each split are short enough."""
    most, counts = run.training.max_length, {}
    for split, rows in splits(run):
        sizes = longer_texts(run, split, rows)
        long = sum(most is not None and size > most for size in sizes)
        dropped = {f"a text over `max_length` {most}": long}
        counts[split] = RowCounts(len(sizes), dropped, fix=_fix(most, sizes))
    return counts


def truncation_mode(training: Any) -> str:
    """Return which end of a long row remains; trainers without the setting keep the start."""
    mode: str = getattr(training, "truncation_mode", "keep_start")
    return mode


def preference_counts(run: Run) -> Mapping[str, RowCounts]:
    """Return the number of pairs per split with a response left, and of truncated pairs."""
    most, starts = run.training.max_length, truncation_mode(run.training) == "keep_start"
    part, counts = "a response" if starts else "the start", {}
    for split, rows in splits(run):
        sizes = _pair_sizes(run, split, rows)
        full = sum(starts and most is not None and prompt >= most for prompt, _ in sizes)
        cut = sum(
            most is not None and whole > most and not (starts and prompt >= most)
            for prompt, whole in sizes
        )
        counts[split] = RowCounts(
            len(sizes),
            {f"the prompt alone fills `max_length` {most}": full},
            {f"{part} is cut at `max_length` {most}": cut},
            _fix(most, [whole for _, whole in sizes]),
        )
    return counts


def _pair_sizes(run: Run, split: str, rows: Any) -> list[tuple[int, int]]:
    """Return for each pair the tokens of its prompt, and of its longer text with the prompt."""
    tokenizer = run.tokenizer
    key = ("pairs", len(rows), str(tokenizer.chat_template), len(tokenizer))
    return once(run.dataset[split], key, lambda: list(_sizes_of_pairs(tokenizer, rows)))


def longer_texts(run: Run, split: str, rows: Any) -> list[int]:
    """Return for each pair the tokens of its longer text with the prompt."""
    return [whole for _, whole in _pair_sizes(run, split, rows)]


def longest_text(run: Run) -> int:
    """Return the tokens of the longest training text, at most `max_length`."""
    lengths, most = longer_texts(run, "train", run.dataset["train"]), run.training.max_length
    return min(max(lengths), most or max(lengths))


def prompt_share(run: Run) -> float:
    """Return the prompt's share of the largest pair of texts, with the prompt computed once.

    Truncation keeps the response.
    """
    sizes, most = _pair_sizes(run, "train", run.dataset["train"]), run.training.max_length
    kept = [(min(whole, most or whole), whole - start) for start, whole in sizes]
    whole, response = max(kept, key=lambda each: each[0] + min(each[1], each[0]))
    return max(0.0, 1 - response / whole)


def _sizes_of_pairs(tokenizer: Any, rows: Any) -> Iterator[tuple[int, int]]:
    for batch in parts(rows, _AT_ONCE):
        prompts = [row["prompt"] for row in batch]
        alone = encode_batch(tokenizer, prompts, batch, add_generation_prompt=True)
        both = [
            encode_batch(
                tokenizer, [joined(row["prompt"], ended(tokenizer, row[s])) for row in batch], batch
            )
            for s in SIDES
        ]
        for prompt, *texts in zip(alone, *both, strict=True):
            start = min(common_start(prompt, text) for text in texts)
            yield start, max(map(len, texts))


def parts(rows: Any, size: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a data set, `size` at a time."""
    for start in range(0, len(rows), size):
        yield rows.select(range(start, min(start + size, len(rows)))).to_list()


def _fix(most: int | None, lengths: Sequence[int]) -> str:
    """Return the suggested setting, with the lengths of the rows in tokens."""
    if not lengths or most is None:
        return ""
    middle, high = np.percentile(lengths, [50, 95], method="higher").tolist()
    return (
        f"Raise `max_length` (now {most}), or shorten the rows: they have {middle:,} tokens at the "
        f"median, {high:,} at the 95th percentile, {max(lengths):,} at most."
    )


class Size(NamedTuple):
    """Tokens of a single-response row: all, within `max_length`, and with a loss."""

    whole: int
    kept: int
    trained: int
    replies: bool
    """Whether any of its tokens, truncated or not, has a loss."""


def text_sizes(
    run: Run,
    split: str,
    rows: Any,
    encode: Callable[[Sequence[Mapping[str, Any]]], Sequence[Encoded]],
    *key: Hashable,
    most: int | None,
) -> list[Size]:
    """Return the size of each of `rows`, the first of a split, within `most` tokens.

    `encode` takes many rows at once, and depends on `key` beside the tokenizer.
    """
    mode, tokenizer = truncation_mode(run.training), run.tokenizer

    def size(encoded: Encoded) -> Size:
        cut = encoded.cut(most, mode)
        return Size(len(encoded.ids), len(cut.ids), sum(cut.counted), any(encoded.counted))

    return once(
        run.dataset[split],
        ("texts", len(rows), most, mode, str(tokenizer.chat_template), len(tokenizer), *key),
        lambda: [size(each) for batch in parts(rows, _AT_ONCE) for each in encode(batch)],
    )


def counts_of_texts(most: int | None, sizes: Sequence[Size]) -> RowCounts:
    """Return the counts of single-response rows."""
    none = sum(not size.trained for size in sizes)
    cut = sum(size.kept < size.whole and size.trained > 0 for size in sizes)
    return RowCounts(
        len(sizes),
        {"nothing of the response" + (f" within `max_length` {most}" if most else ""): none},
        {f"over `max_length` {most}": cut},
        _fix(most, [size.whole for size in sizes]),
    )
