"""Split questions, never samples, into training and validation.

A question's rank is a hash of it and the seed, so its side does not depend on the order of the file
or on the machine. Ranks below a cut are for validation; the cut is set once, when reading traces.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from hf_rlhf_traces.rows import Split as Side


@dataclass(frozen=True, slots=True)
class Split:
    """Splits questions. `cut` is between 0 (no validation) and 2**64."""

    ratio: float
    seed: int
    cut: int

    @classmethod
    def choose(cls, ranks: Iterable[int], ratio: float, seed: int) -> "Split":
        """Return the split with the validation share of distinct questions nearest to `ratio`.

        `ranks` are the questions' ranks under `seed`, repeated or not. With two or more questions,
        each side has at least one; a single question is for training.
        """
        import numpy as np

        distinct = np.unique(np.fromiter(ranks, np.uint64))
        if len(distinct) < 2:
            return cls(ratio, seed, 0)
        wanted = min(max(round(ratio * len(distinct)), 1), len(distinct) - 1)
        return cls(ratio, seed, int(distinct[wanted]))

    @classmethod
    def of_report(cls, report: Mapping[str, Any]) -> "Split":
        """Return the split of a report of `build`."""
        return cls(**report["split"])

    def of(self, key: str) -> Side:
        """Return the side of a question, by `hf_rlhf_traces.trace.question_key`."""
        return "validation" if rank(key, self.seed) < self.cut else "train"

    def settings(self) -> dict[str, Any]:
        """Return the fields, for reports and cards."""
        return asdict(self)


def rank(key: str, seed: int) -> int:
    """Return the 64-bit rank of a question."""
    return int.from_bytes(blake2b(f"{seed}:{key}".encode(), digest_size=8).digest(), "big")
