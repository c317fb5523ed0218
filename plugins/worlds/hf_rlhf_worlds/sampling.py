"""Split generated worlds: prompts without repetition, held out by a hash of their text."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal, TypeVar, get_args

from hf_rlhf.contracts import Loaded
from hf_rlhf.errors import DataError

Form = Literal["sft", "preference", "unpaired", "prompts"]
Split = Literal["train", "test"]
Problem = TypeVar("Problem")

_HELD_OUT_SHARE = 5  # a fifth of the texts is always in `test`
_MOST_REPEATS = 2_000  # consecutive draws without a new prompt: the world is exhausted


def split_of(text: str) -> Split:
    """Return the split of a prompt, or of a text that determines it, for any seed."""
    digest = hashlib.sha256(text.encode()).digest()
    return "test" if digest[0] % _HELD_OUT_SHARE == 0 else "train"


def distinct(
    draw: Callable[[], Problem], prompt: Callable[[Problem], str], split: Split
) -> Iterator[Problem]:
    """Yield distinct problems of a split until none (or very few) are left."""
    drawn: set[str] = set()
    failures = 0
    while failures < _MOST_REPEATS:
        problem = draw()
        text = prompt(problem)
        if text in drawn or split_of(text) != split:
            failures += 1
            continue
        failures = 0
        drawn.add(text)
        yield problem


def check_form(world: str, form: str) -> None:
    """Raise DataError for an unknown form."""
    if form not in get_args(Form):
        forms = ", ".join(get_args(Form))
        raise DataError(f"{world}: form is {form!r}. Known forms: {forms}.")


Rows = Callable[[Split], Iterator[Mapping[str, Any]]]


def with_flips(world: str, form: str, flips: float, seed: int, rows: Rows) -> Rows:
    """Return rows of pairs with a share of swapped training pairs: column `flipped`."""
    if not 0 <= flips < 1 or (flips and form != "preference"):
        raise DataError(
            f"{world}: flips is {flips}, with the form {form}. It is a share of the training rows "
            "of the form preference, from 0 to below 1."
        )

    def noisy(split: Split) -> Iterator[Mapping[str, Any]]:
        rng = generator(seed, "flips", split)
        for row in rows(split):
            flipped = split == "train" and rng.random() < flips
            swapped = {"chosen": row["rejected"], "rejected": row["chosen"]}
            if "margin" in row:
                swapped["margin"] = -row["margin"]
            yield {**row, **(swapped if flipped else {}), "flipped": flipped}

    return noisy if flips else rows


def build_splits(
    world: str,
    counts: Mapping[Split, int],
    rows: Rows,
    report: Mapping[str, Any],
) -> Loaded:
    """Return the first rows of each split. Raises DataError for counts that are too large."""
    from datasets import Dataset, DatasetDict

    for split, count in counts.items():
        if count < 1:
            raise DataError(f"{world}: {split}_rows is {count}. It must be at least 1.")
    splits = {}
    for split, count in counts.items():
        drawn = [dict(row) for row in islice(rows(split), count)]
        if len(drawn) < count:
            raise DataError(
                f"{world}: {split}_rows is {count}, but only about {len(drawn)} different prompts "
                f"of this kind belong to {split}. Ask for fewer rows, or for more kinds of prompt."
            )
        splits[split] = Dataset.from_list(drawn)
    return Loaded(DatasetDict(splits), report)


def generator(seed: int, *names: str) -> random.Random:
    """Return a random generator for a purpose, the same on every machine."""
    return random.Random("/".join([str(seed), *names]))
