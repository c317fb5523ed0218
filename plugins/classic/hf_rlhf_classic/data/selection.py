"""Which rows train and which are held out: duplicates, overlap, shares, by hashes alone.

A row is three 64-bit hashes, 24 bytes, however long it is: of prompt and answers exactly, of the
same with case and white space aside, and of the prompt without its system turn. Among ten million
different rows two share a hash with a probability of about 3 in a million.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_classic.data.schemas import Example

HASHES = ("exact", "normalised", "prompt")
DEFAULT_TEST_SHARE = 0.1


def hashes_of(example: Example) -> tuple[int, int, int]:
    """Return the hashes named in `HASHES`."""
    marks = [turn["role"] for turn in example.history] + ["answer"] * len(example.answers)
    texts = [turn["content"] for turn in example.history] + list(example.answers)
    plain = [_plain(text) for text in texts]
    spoken = [
        text for mark, text in zip(marks, plain, strict=True) if mark in ("user", "assistant")
    ]
    return (
        _hash("\x1e".join([*marks, *texts])),
        _hash("\x1e".join([*marks, *plain])),
        _hash("\x1e".join(spoken)),
    )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Split:
    """How rows are chosen; see the arguments of the adapters."""

    test_rows: int | None = None
    test_share: float | None = None
    max_train_rows: int | None = None
    max_test_rows: int | None = None
    seed: int = 42
    drop_duplicates: str = "none"
    drop_overlap: bool = True

    def __post_init__(self) -> None:
        if self.test_rows is not None and self.test_share is not None:
            raise DataError("`test_rows` and `test_share` are both given. Leave one out.")
        leasts = {"test_rows": 0, "max_train_rows": 1, "max_test_rows": 1, "seed": 0}
        for name, least in leasts.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"`{name}` is {value}, expected at least {least}.")
        if self.test_share is not None and not 0 < self.test_share < 1:
            raise DataError(f"`test_share` is {self.test_share}, expected between 0 and 1.")

    @property
    def cuts(self) -> bool:
        """Whether held-out rows are asked to be cut from the training split."""
        return self.test_rows is not None or self.test_share is not None


@dataclass(frozen=True)
class Selection:
    """Masks over the rows that can be used: of the training source, and of the held-out one."""

    train: Any
    """numpy bool, one per row of the training source."""
    test: Any
    """The same over the held-out source, or over the training source if rows were cut from it."""
    dropped: Mapping[str, int]
    report: Mapping[str, Any]


def select(train: Mapping[str, Any], test: Mapping[str, Any] | None, split: Split) -> Selection:
    """Decide on every row.

    Args:
        train: hashes of the training source: name -> numpy uint64, one per row.
        test: the same of a held-out source, or None to cut held-out rows from `train` by prompt.
        split: what is asked for.

    Raises:
        DataError: nothing would be left to train on.
    """
    import numpy as np

    sides = [train] if test is None else [train, test]
    repeats = [{kind: _repeats(side[kind]) for kind in HASHES[:2]} for side in sides]
    report: dict[str, Any] = {
        "duplicates": {kind: int(sum(side[kind].sum() for side in repeats)) for kind in HASHES[:2]}
    }
    kept = [np.ones(len(side["exact"]), bool) for side in sides]
    dropped: Counter[str] = Counter()
    if split.drop_duplicates != "none":
        for mask, repeat in zip(kept, repeats, strict=True):
            dropped["duplicate"] += _take(mask, repeat[split.drop_duplicates])
    if test is None:
        held = _cut(train["prompt"], kept[0], split)
        masks = [kept[0] & ~held, kept[0] & held]
    else:
        shared = np.isin(train["prompt"], test["prompt"][kept[1]])
        report["train_rows_whose_prompt_is_held_out"] = int((shared & kept[0]).sum())
        if split.drop_overlap:
            dropped["prompt_is_held_out"] += _take(kept[0], shared)
        masks = kept
    if not masks[0].any():
        raise DataError(
            "no row is left to train on: all are duplicates, or their prompts are held out "
            f"({dict(dropped)}). Bring other rows, or write `drop_overlap: false`."
        )
    for mask, name in zip(masks, ("max_train_rows", "max_test_rows"), strict=True):
        dropped[f"over_{name}"] += _thin(mask, getattr(split, name), split.seed)
    return Selection(masks[0], masks[1], {why: n for why, n in dropped.items() if n}, report)


def _repeats(hashes: Any) -> Any:
    """Return a mask of the rows whose hash an earlier row has."""
    import numpy as np

    mask = np.ones(len(hashes), bool)
    mask[np.unique(hashes, return_index=True)[1]] = False
    return mask


def _take(mask: Any, away: Any) -> int:
    """Clear `mask` where `away` is set; return how many rows that takes."""
    count = int((mask & away).sum())
    mask &= ~away
    return count


def _thin(mask: Any, most: int | None, seed: int) -> int:
    import numpy as np

    rows = np.flatnonzero(mask)
    if most is None or len(rows) <= most:
        return 0
    gone = np.random.default_rng(seed).permutation(rows)[most:]
    mask[gone] = False
    return len(gone)


def _cut(prompts: Any, kept: Any, split: Split) -> Any:
    """Return a mask of the rows to hold out: whole prompts, in an order that `seed` decides.

    The order is by a hash of the prompt, so that adding rows moves no prompt to another place in
    it, and rows that share a prompt stay on one side.
    """
    import numpy as np

    if not kept.any():
        return np.zeros(len(prompts), bool)
    unique, index, sizes = np.unique(prompts[kept], return_inverse=True, return_counts=True)
    share = DEFAULT_TEST_SHARE if split.test_share is None else split.test_share
    total = int(kept.sum())
    wanted = max(1, round(total * share)) if split.test_rows is None else split.test_rows
    # A prompt with more rows than are wanted comes after those with fewer, the largest last.
    order = np.lexsort((_mixed(unique, split.seed), np.where(sizes > wanted, sizes, 0)))
    before = np.cumsum(sizes[order]) - sizes[order]
    held = order[before < wanted]
    if len(held) == len(unique) and wanted:
        if split.cuts:
            raise DataError(
                f"{wanted} of {total} usable rows ({len(unique)} different prompts) cannot be held "
                "out and leave any to train on. Hold out fewer, or bring more rows."
            )
        held = held[:0]
    chosen = np.zeros(len(unique), bool)
    chosen[held] = True
    mask = np.zeros(len(prompts), bool)
    mask[kept] = chosen[index]
    return mask


def _mixed(hashes: Any, seed: int) -> Any:
    """Return splitmix64 of each hash and the seed (Steele et al. 2014), wrapping on purpose."""
    import numpy as np

    start = (seed * 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = hashes + np.uint64(start)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
