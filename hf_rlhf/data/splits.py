"""Select training and held-out rows by hashes alone: duplicates, overlap, shares.

A row of any length is three 64-bit hashes (24 bytes): of the exact prompt and answers, of both
without case and white space, and of the prompt without its system turn. The probability that two of
ten million different rows collide is about 3 in a million.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_rlhf.data.examples import Example
from hf_rlhf.data.sources import Rows, Source
from hf_rlhf.errors import DataError

HASHES = ("exact", "normalised", "prompt")
HELD_OUT_SPLITS = ("test", "validation")
"""Held-out splits of a source, of which the first that exists is used."""
DEFAULT_TEST_SHARE = 0.1


def row_hashes(example: Example) -> tuple[int, int, int]:
    """Return the hashes in `HASHES`."""
    roles = [turn["role"] for turn in example.history] + ["answer"] * len(example.answers)
    texts = []
    for turn in (*example.history, *example.answers):
        others = {key: value for key, value in turn.items() if key not in ("role", "content")}
        texts.append(str(turn["content"]) + (json.dumps(others, sort_keys=True) if others else ""))
    plain = [normalised_text(text) for text in texts]
    prompt = [
        text for role, text in zip(roles, plain, strict=True) if role not in ("system", "answer")
    ]
    return (
        _hash("\x1e".join([*roles, *texts])),
        _hash("\x1e".join([*roles, *plain])),
        _hash("\x1e".join(prompt)),
    )


def normalised_text(text: str) -> str:
    """Fold the case of a text, and collapse runs of white space to one space."""
    return " ".join(text.casefold().split())


def prompt_hash(prompt: str | Sequence[Mapping[str, Any]]) -> int:
    """Return a hash of a text or turns that ignores system turns, case and white space."""
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    texts = [str(turn["content"]) for turn in turns if turn["role"] != "system"]
    return _hash("\x1e".join(map(normalised_text, texts)))


def text_hash(text: str) -> int:
    """Return a hash of a text that ignores case and white space."""
    return _hash(normalised_text(text))


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True, kw_only=True)
class Split:
    """The split into training and held-out rows, from the arguments of dataset adapters.

    With neither `test_rows` nor `test_share`, the source's `test` (or `validation`) split is held
    out, or a tenth of the rows if it has neither. With either argument, rows are cut from the
    training split. Rows with the same prompt always share a split.
    """

    split: str | None = None
    test_rows: int | None = None
    test_share: float | None = None
    max_train_rows: int | None = None
    max_test_rows: int | None = None
    seed: int = 42
    drop_duplicates: Literal["none", "exact", "normalised"] = "none"
    drop_overlap: bool = True

    def __post_init__(self) -> None:
        if self.test_rows is not None and self.test_share is not None:
            raise DataError("`test_rows` and `test_share` are both given. Leave one out.")
        minima = {"test_rows": 0, "max_train_rows": 1, "max_test_rows": 1, "seed": 0}
        for name, minimum in minima.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise DataError(f"`{name}` is {value}, expected at least {minimum}.")
        if self.test_share is not None and not 0 < self.test_share < 1:
            raise DataError(f"`test_share` is {self.test_share}, expected between 0 and 1.")

    @property
    def cuts(self) -> bool:
        """Whether held-out rows are cut from the training split."""
        return self.test_rows is not None or self.test_share is not None

    def sources(self, source: Source) -> tuple[Rows, Rows | None]:
        """Return the training rows, and the source's own held-out rows if they are used.

        Raises:
            DataError: `split` is not one of the source's splits, or is needed and missing.
        """
        train = next(iter(source.splits.values()))
        if self.split is not None or len(source.splits) > 1:
            if self.split is None and "train" not in source.splits:
                raise DataError(
                    f"{source.name}: has the splits {', '.join(source.splits)}, and none of that "
                    "name is `train`. Name the one to train on: `split: NAME`."
                )
            train = source.split(self.split or "train")
        names = () if self.cuts else HELD_OUT_SPLITS
        held_out = (source.splits[name] for name in names if name in source.splits)
        return train, next((rows for rows in held_out if rows is not train), None)

    def describe(self, source: Source, unit: str = "prompt") -> str:
        """Describe the origin of a source's held-out rows for a report."""
        train, held_out = self.sources(source)
        return held_out.name if held_out else f"cut from {train.name} by {unit}, seed {self.seed}"


@dataclass(frozen=True)
class Selection:
    """Masks over the usable rows of the training source and the held-out source."""

    train: Any
    """numpy bool, shape (rows of the training source,)."""
    test: Any
    """Mask over the held-out source, or over the training source if rows are cut from it."""
    dropped: Mapping[str, int]
    report: Mapping[str, Any]


def select(train: Mapping[str, Any], test: Mapping[str, Any] | None, split: Split) -> Selection:
    """Decide for every row whether it is trained on, held out or dropped.

    Args:
        train: hashes of the training source: name -> numpy uint64, shape (rows,).
        test: hashes of a held-out source, or None to cut held-out rows from `train` by prompt.
        split: how to divide the rows.

    Raises:
        DataError: nothing would be left to train on.
    """
    import numpy as np

    sides = [train] if test is None else [train, test]
    repeats = [{kind: _repeats(side[kind]) for kind in HASHES[:2]} for side in sides]
    report: dict[str, Any] = {
        "duplicates": {kind: int(sum(side[kind].sum() for side in repeats)) for kind in HASHES[:2]}
    }
    usable = [np.ones(len(side["exact"]), bool) for side in sides]
    dropped: Counter[str] = Counter()
    if split.drop_duplicates != "none":
        for mask, repeat in zip(usable, repeats, strict=True):
            dropped["duplicate"] += int((mask & repeat[split.drop_duplicates]).sum())
            mask &= ~repeat[split.drop_duplicates]
    if test is None:
        held_out = held_out_mask(train["prompt"], usable[0], split)
        masks = [usable[0] & ~held_out, usable[0] & held_out]
    else:
        shared = np.isin(train["prompt"], test["prompt"][usable[1]])
        overlap = report["train_rows_whose_prompt_is_held_out"] = int((shared & usable[0]).sum())
        if split.drop_overlap:
            dropped["prompt_is_held_out"] += overlap
            usable[0] &= ~shared
        masks = usable
    if not masks[0].any():
        raise DataError(
            "no row is left to train on: all are duplicates, or their prompts are held out "
            f"({dict(dropped)}). Bring other rows, or write `drop_overlap: false`."
        )
    for mask, name in zip(masks, ("max_train_rows", "max_test_rows"), strict=True):
        dropped[f"over_{name}"] += _thin(mask, getattr(split, name), split.seed)
    return Selection(masks[0], masks[1], {why: n for why, n in dropped.items() if n}, report)


def _repeats(hashes: Any) -> Any:
    """Return a mask of rows that repeat an earlier row's hash."""
    import numpy as np

    mask = np.ones(len(hashes), bool)
    mask[np.unique(hashes, return_index=True)[1]] = False
    return mask


def _thin(mask: Any, max_rows: int | None, seed: int) -> int:
    import numpy as np

    rows = np.flatnonzero(mask)
    if max_rows is None or len(rows) <= max_rows:
        return 0
    removed = np.random.default_rng(seed).permutation(rows)[max_rows:]
    mask[removed] = False
    return len(removed)


def held_out_mask(prompts: Any, usable: Any, split: Split) -> Any:
    """Return a mask of the rows to hold out: whole prompts, in an order set by `seed`.

    Prompts are ordered by a hash, so that added rows do not reorder the others, and rows that share
    a prompt share a split.

    Args:
        prompts: numpy uint64, shape (rows,): a hash of each row's prompt.
        usable: numpy bool, shape (rows,): the rows to choose from.
        split: how many, and the seed.

    Raises:
        DataError: no row would be left to train on.
    """
    import numpy as np

    if not usable.any():
        return np.zeros(len(prompts), bool)
    unique, index, sizes = np.unique(prompts[usable], return_inverse=True, return_counts=True)
    share = DEFAULT_TEST_SHARE if split.test_share is None else split.test_share
    total = int(usable.sum())
    wanted = max(1, round(total * share)) if split.test_rows is None else split.test_rows
    # Prompts with more rows than are wanted come last, the largest at the end.
    order = np.lexsort((_mixed(unique, split.seed), np.where(sizes > wanted, sizes, 0)))
    before = np.cumsum(sizes[order]) - sizes[order]
    held_out = order[before < wanted]
    if len(held_out) == len(unique) and wanted:
        if split.cuts:
            raise DataError(
                f"{wanted} of {total} usable rows ({len(unique)} different prompts) cannot be held "
                "out and leave any to train on. Hold out fewer, or bring more rows."
            )
        held_out = held_out[:0]
    is_held_out = np.zeros(len(unique), bool)
    is_held_out[held_out] = True
    mask = np.zeros(len(prompts), bool)
    mask[usable] = is_held_out[index]
    return mask


def _mixed(hashes: Any, seed: int) -> Any:
    """Return splitmix64 of each hash and the seed (Steele et al. 2014), wrapping on purpose."""
    import numpy as np

    start = (seed * 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = hashes + np.uint64(start)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
