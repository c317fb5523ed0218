"""Count the rows read, so that every input row is accounted for.

Memory grows by about 200 bytes a trace, for its id and the rank of its question.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hf_rlhf.errors import DataError
from hf_rlhf_traces.outcomes import BY_CHOICE, REJECTED
from hf_rlhf_traces.reading import Read, Rejected, rejected
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import REFUSED

NAMES = 60
"""Maximum names of unknown types and fields in a report; the rest are counted together."""
PLACES = 3
"""Maximum rows per reason in a message."""


class Tally:
    """Counts rows and makes ids unique, in the order of the input."""

    def __init__(self, seed: int, folder: Path, files: Sequence[str] = ()) -> None:
        self.folder, self.files = folder, files
        self.seed = seed
        self.rows = 0
        self.traces = 0
        self.rejected: Counter[str] = Counter()
        self.places: dict[str, list[str]] = {}
        self.forms: Counter[str] = Counter()
        self.types: dict[str, Counter[str]] = {"answers": Counter(), "unknown": Counter()}
        self.noted: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        self.ranks = array("Q")
        self._content = sha256()
        self._digests: dict[int, int] = {}
        """Hash of an id -> beginning of the digest of its row."""

    def add(self, row: Read | Rejected) -> Read | Rejected:
        """Count a row and return it, renamed or rejected if it repeats another."""
        self.rows += 1
        if isinstance(row, Read):
            row = self._resolve_repeats(row)
        if isinstance(row, Rejected):
            self.rejected[row.reason] += 1
            places = self.places.setdefault(row.reason, [])
            if len(places) < PLACES:
                places.append(f"{row.where}: {row.detail}")
        else:
            self._count(row)
        return row

    def _resolve_repeats(self, read: Read) -> Read | Rejected:
        """Reject a duplicate row; rename a row that only shares its id with another."""
        name, digest = _hash(read.id), int(read.digest[:16], 16)
        before = self._digests.get(name)
        if before is None:
            self._digests[name] = digest
            return read
        renamed = f"{read.id}~{read.digest[:8]}"
        if before == digest or _hash(renamed) in self._digests:
            detail = f"the same row, id {read.id!r}, was read before"
            return rejected(read.where, "duplicate", detail)
        self._digests[_hash(renamed)] = digest
        self.noted["renamed"] += 1
        return replace(read, id=renamed)

    def _count(self, read: Read) -> None:
        for kind, name in read.types:
            self.types[kind][name] += 1
        self.steps.update(read.steps)
        self.traces += 1
        self._content.update(f"{read.id}\0{read.where}\0{read.digest}\n".encode())
        self.forms[read.form] += 1
        self.noted.update(read.noted)
        self.ranks.append(rank(read.key, self.seed))

    @property
    def bad(self) -> int:
        """Return the number of rows rejected for a fault."""
        return self.rejected.total() - sum(self.rejected[reason] for reason in BY_CHOICE)

    @property
    def content(self) -> str:
        """Return a digest of all traces, 32 hex digits."""
        return self._content.hexdigest()[:32]

    def refuse_if_more(self, share: float) -> None:
        """Raise DataError, with reasons and rows, if more than `share` of the rows have a fault.

        Repeated rows and rows left out by choice have no fault.
        """
        if not self.rows:
            read = f"{', '.join(self.files[:3])}{' and others' * (len(self.files) > 3)}"
            raise DataError(f"there is no row in {read}. Expected at least one.")
        if self.bad <= share * self.rows and self.traces:
            return
        lines = [
            f"  {count:,} {reason} ({REJECTED[reason]})"
            + "".join(f"\n    {where}" for where in self.places[reason])
            for reason, count in self.rejected.most_common()
        ]
        allowed = f", more than --max_rejected_share {share:g}" if self.traces else ""
        text = f"{self.bad:,} of {self.rows:,} rows are no traces{allowed}:\n" + "\n".join(lines)
        raise DataError(
            f"{text}\nAll are in {self.folder / REFUSED}. Mend them, name their form by --form, or "
            "allow more of them by --max_rejected_share."
        )

    def report(self, ratio: float) -> dict[str, Any]:
        """Return the counts, and the split of the questions read."""
        import numpy as np

        ranks = np.frombuffer(self.ranks, np.uint64)
        split = Split.choose(ranks, ratio, self.seed)
        sides = {
            "questions": np.unique(ranks) < np.uint64(split.cut),
            "split_traces": ranks < np.uint64(split.cut),
        }
        return {
            "rows": self.rows,
            "traces": self.traces,
            "rejected": _sorted(self.rejected),
            "places": dict(sorted(self.places.items())),
            "forms": _sorted(self.forms),
            "steps": _sorted(self.steps),
            "answers": _sorted(self.types["answers"]),
            "unknown": _sorted(self.types["unknown"]),
            "noted": _sorted(self.noted),
            "split": split.settings(),
            **{
                what: {"train": int((~below).sum()), "validation": int(below.sum())}
                for what, below in sides.items()
            },
        }


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """Return counts by name, rare names as `others`: the data determines the names."""
    frequent = dict(counts.most_common(NAMES))
    if rare := counts.total() - sum(frequent.values()):
        frequent["others"] = rare
    return {name: count for name, count in sorted(frequent.items()) if count}
