"""What the processes of a training tell each other about the completions that they scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.errors import HfRlhfError, RewardError


@dataclass(frozen=True)
class ScoredRow:
    """One completion of a training call."""

    prompt: int
    """A checksum, since prompts are long and every process receives all rows."""
    scores: Mapping[str, Score]
    """By label, the total too."""
    length: int
    """In characters: ids are padded by some trainers, and depend on the tokenizer."""
    masked: bool = False
    """Whether training leaves it out for having been cut."""


@dataclass(frozen=True)
class _Stopped:
    message: str


def gather_rows(rows: list[Any], *, failed: HfRlhfError | None = None) -> list[Any]:
    """Return the rows of all processes, on each of them.

    A process that has none because it `failed` calls this too, for the others would wait for it;
    on the others this raises RewardError with its message.
    """
    from accelerate.utils import gather_object

    gathered: list[Any] = gather_object(rows if failed is None else [_Stopped(str(failed))])
    for row in gathered:
        if isinstance(row, _Stopped) and failed is None:
            raise RewardError(f"Stopped, because another process did: {row.message}")
    return gathered
