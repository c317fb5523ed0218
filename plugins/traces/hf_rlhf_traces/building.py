"""Which input makes which shard, and how a trace becomes the rows of a dataset."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from hf_rlhf.errors import DataError
from hf_rlhf_rollouts import Rollout
from hf_rlhf_traces.blocks import Block
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.shards import SPLITS, Row, ShardWriter

AFTER = ("build", "format")
"""Steps of a store that datasets are built from."""
SHARD = 32 << 20
"""Bytes of input for a shard, at least."""
MOST_SHARDS = 2_000
"""The Hub takes 25,000 files in a commit, and readers open every one."""
_NEEDED = {"steps": "a result and a reply to it", "multiturn": "a reply"}
_SKIPPED = ("trailing_results", "empty_reply")


class Shard(Struct, frozen=True):
    """The input of one shard."""

    number: int
    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Bytes of input, 0 for a file that can only be read from its start."""
        return sum(block.size for block in self.blocks)


def shards_of(blocks: Iterable[Block], size: int) -> Iterator[Shard]:
    """Yield shards of consecutive blocks, of up to `size` bytes: small files share one.

    A file that can only be read from its start has a shard of its own.
    """
    number, pending, total = 0, list[Block](), 0
    for block in blocks:
        if pending and (not block.size or not pending[-1].size or total + block.size > size):
            yield Shard(number, tuple(pending))
            number, pending, total = number + 1, [], 0
        pending.append(block)
        total += block.size
    if pending:
        yield Shard(number, tuple(pending))


def shard_size(total: int) -> int:
    """Return the bytes of input of a shard, for `total` bytes."""
    return max(SHARD, total // MOST_SHARDS)


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """How a trace becomes the rows of a dataset."""

    dataset: str
    rows_of: Callable[[Rollout], tuple[Sequence[Row], Counter[str]]]
    """A pure function: the rows, and counts as `hf_rlhf_traces.samples` has them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the rows depend on, beside the traces and the format."""

    def add(
        self, trace: Rollout, side: Side, writer: ShardWriter | None, counts: Counter[str]
    ) -> None:
        """Count the rows of a trace, and write them if there is a writer."""
        rows, more = self.rows_of(trace)
        counts.update(more)
        counts[f"traces {side}"] += 1
        counts[f"rows {side}"] += len(rows)
        counts["traces_without_samples"] += not rows
        if writer is not None:
            writer.add(side, rows)


def dataset_report(dataset: str, counts: Counter[str], source: str) -> dict[str, Any]:
    """Return the report of a dataset from its counts. Raises DataError where there is no sample."""
    if not counts["samples"]:
        reasons = [f"{counts[reason]} {reason}" for reason in _SKIPPED if counts[reason]]
        raise DataError(
            f"{source}: no trace gives a sample of {dataset}, which needs {_NEEDED[dataset]}. "
            f"Cuts: {', '.join(reasons) or 'none'}."
        )
    report: dict[str, Any] = {
        "traces": {side: counts.pop(f"traces {side}", 0) for side in SPLITS},
        "samples": {side: counts.pop(f"rows {side}", 0) for side in SPLITS},
        "skipped": {reason: counts.pop(reason, 0) for reason in _SKIPPED},
    }
    del counts["samples"]  # the sum of both splits
    return {**report, **dict(sorted(counts.items()))}
