"""Gather the scored completions of all training processes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hf_rlhf.errors import HfRlhfError, RewardError
from hf_rlhf.scores import Score


@dataclass(frozen=True)
class ScoredRow:
    """A completion of a training call."""

    prompt: int
    """A checksum: prompts are long, and every process receives all rows."""
    scores: Mapping[str, Score]
    """Scores by label, including the total."""
    length: int
    """In characters: ids are padded by some trainers, and depend on the tokenizer."""
    masked: bool = False
    """Whether training drops it because it was truncated."""


@dataclass(frozen=True)
class _Stopped:
    message: str


def gather_rows(rows: list[Any], *, failed: HfRlhfError | None = None) -> list[Any]:
    """Return the rows of all processes on each process.

    A process that `failed` must also call this, since the others wait for it; they raise
    RewardError with its message.
    """
    from accelerate.utils import gather_object

    gathered: list[Any] = gather_object(rows if failed is None else [_Stopped(str(failed))])
    for row in gathered:
        if isinstance(row, _Stopped) and failed is None:
            raise RewardError(f"Stopped, because another process did: {row.message}")
    return gathered


def summarise(values: Sequence[Score], groups: Sequence[object]) -> dict[str, float]:
    """Return mean, std (ddof 0), None count, and share of groups with all scores equal.

    A group is a run of equal entries in `groups`: GRPO's completions of a prompt. A group of equal
    scores has advantage 0 and teaches nothing (Yu et al. 2025, DAPO).
    """
    scores = [value for value in values if value is not None]
    statistics = {"none": float(len(values) - len(scores))}
    if not scores:
        return statistics
    mean = math.fsum(scores) / len(scores)
    statistics["mean"] = mean
    statistics["std"] = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
    pairs = zip(groups, values, strict=True)
    by_group = [
        [value for _, value in group if value is not None]
        for _, group in itertools.groupby(pairs, key=itemgetter(0))
    ]
    comparable = [group for group in by_group if len(group) > 1]
    if comparable:
        flat = sum(max(group) - min(group) < 1e-9 for group in comparable)
        statistics["zero_std_groups"] = flat / len(comparable)
    return statistics
