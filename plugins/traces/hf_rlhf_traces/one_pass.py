"""`read` and `steps` in one pass: the worker that reads a trace builds its rows, too.

Which questions are for validation is known when all are read: those whose rank is below a cut that
is near to the ratio. So rows are built at once of the traces whose rank is not near to it, and of
the few others in the end. These come last in the files; the rows are those of the two verbs.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from pathlib import Path
from typing import IO, Any

from hf_rlhf.storage import LOCK_NAME, claimed, whole_folder
from hf_rlhf_traces.building import AFTER, Built, Made, Rows, append, build, reported
from hf_rlhf_traces.engine import Block, blocks, in_order
from hf_rlhf_traces.format_options import store_format
from hf_rlhf_traces.gathering import Found
from hf_rlhf_traces.job import DATASET, Job
from hf_rlhf_traces.read_command import is_read, read
from hf_rlhf_traces.reading import Read, Rejected
from hf_rlhf_traces.rows import Split as Side
from hf_rlhf_traces.sources import in_blocks
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import Store
from hf_rlhf_traces.trace import Trace
from hf_rlhf_traces.writing import SPLITS, SplitWriter, splits_written

NEAR = 0.01
"""How near to the ratio, in shares of all ranks, the side of a question is not known at once."""


def read_and_build(job: Job, workers: int | None = None) -> Mapping[str, Any]:
    """Read files into a store and build its steps; return the report of the steps.

    Files that cannot be read from the middle, and files that are read already, are built in a pass
    of their own. Raises as `read` and `build` do.
    """
    if is_read(**job.reading) or not all(map(in_blocks, job.reading["sources"])):
        return _two_passes(job, workers)
    with _scratch(job.home) as home:
        return _one_pass(job, home, workers) or _two_passes(job, workers)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Give an empty folder in one that is this process's meanwhile, and is gone if it was ours."""
    home = folder / "one_pass"
    try:
        with claimed(folder, "--out"):
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            try:
                yield home
            finally:
                shutil.rmtree(home, ignore_errors=True)
                (folder / LOCK_NAME).unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # another process is in it, or what other tasks have made
            folder.rmdir()
            folder.parent.rmdir()


def _two_passes(job: Job, workers: int | None) -> Mapping[str, Any]:
    read(**job.reading, workers=workers)
    store = _formatted(job)
    return build(store, job.rows, job.settings, workers=workers)


def _formatted(job: Job) -> Store:
    store = Store.open(job.store)
    store_format(store, job.form, overwrite=job.reading["overwrite"])
    return store


def _one_pass(job: Job, home: Path, workers: int | None) -> Mapping[str, Any] | None:
    """Return the report, or None if it turned out that sides were not known."""
    ratio = job.reading["validation_ratio"]
    band = Band(int((ratio - NEAR) * 2**64), int((ratio + NEAR) * 2**64), job.reading["seed"])
    with ExitStack() as files:
        left = files.enter_context((home / "left.jsonl").open("wb"))
        writers = files.enter_context(splits_written(home, DATASET, job.layout))
        begun = _Begun(job.rows, band, writers, left, workers)
        read(**job.reading, each=begun.each, settled=begun.settled)
        store = _formatted(job)
        split = Split.of_report(store.report("read"))
        if not band.low <= split.cut <= band.high:
            return None
        left.flush()
        with store.making(DATASET, job.settings, after=AFTER, replacing=True) as report:
            for made in in_order(Built(job.rows, split), blocks(Path(left.name)), workers=workers):
                append(made, writers, begun.counts)
            report.update(reported(store, DATASET, begun.counts, writers))
            files.close()  # they are whole now
            _put(home, store.folder / "datasets" / DATASET)
    return report


def _put(home: Path, folder: Path) -> None:
    with whole_folder(folder, overwrite=True) as made:
        for split in SPLITS:
            for path in home.glob(f"{split}.*"):
                path.rename(made / path.name)


@dataclass(frozen=True, slots=True)
class Band:
    """Ranks near to the ratio. The cut will be in it, unless there are few questions."""

    low: int
    high: int
    seed: int

    def side(self, key: str) -> Side | None:
        """Return the side of a question, or None where it is not known yet."""
        place = rank(key, self.seed)
        if place < self.low:
            return "validation"
        return None if place < self.high else "train"


@dataclass(frozen=True, slots=True)
class _Both:
    """What a worker makes of a block of a file."""

    found: Found
    made: Made
    unknown: list[int]
    """Of `found`, the traces without a side."""


def read_and_make(block: Block, read: Callable[[Block], Found], rows: Rows, band: Band) -> _Both:
    """Read a block, and build the rows of the traces whose side is known."""
    found = read(block)
    known: list[tuple[Trace, Side]] = []
    unknown: list[int] = []
    for at, one in enumerate(found):
        if isinstance(one, Read):
            if side := band.side(one.key):
                known.append((one.trace, side))
            else:
                unknown.append(at)
    return _Both(found, rows.made(known), unknown)


@dataclass
class _Begun:
    """A dataset that is built while its traces are read."""

    rows: Rows
    band: Band
    writers: Mapping[Side, SplitWriter]
    left: IO[bytes]
    """Lines of traces that are to be built in the end."""
    workers: int | None
    counts: Counter[str] = field(default_factory=Counter)
    _now: _Both | None = None

    def each(self, work: Callable[[Block], Found], items: Iterable[Block]) -> Iterator[Found]:
        """Yield what is read of each block; `settled` takes the rows."""
        both = partial(read_and_make, read=work, rows=self.rows, band=self.band)
        for now in in_order(both, items, workers=self.workers):
            self._now = now
            yield now.found

    def settled(self, found: Found, counted: Sequence[Read | Rejected]) -> None:
        """Write the rows of the block, unless repeated ids have changed what it holds."""
        assert self._now is not None
        later: Iterable[Read | Rejected | None] = counted
        if all(map(is_, filter(None, found), counted)):
            append(self._now.made, self.writers, self.counts)
            later = [found[at] for at in self._now.unknown]
        self.left.writelines(one.line for one in later if isinstance(one, Read))
