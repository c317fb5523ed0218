"""What was read, counted, so that every row of the input is accounted for.

Memory grows by 40 to 72 bytes a trace, for its id and the rank of its question (and 16 more while
the split is chosen), whatever the size of the rows.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hf_rlhf.data import near
from hf_rlhf.errors import DataError
from hf_rlhf_traces.outcomes import BY_CHOICE, REJECTED
from hf_rlhf_traces.readers.search import KNOWN
from hf_rlhf_traces.reading import Options, Read, Rejected, rejected
from hf_rlhf_traces.seen import Seen
from hf_rlhf_traces.split import Split, rank
from hf_rlhf_traces.store import REFUSED

NAMES = 60
"""Names of unknown types and of fields that are told apart in a report."""
PLACES = 3
"""Places that are shown for each reason."""


class Tally:
    """Counts rows, and settles ids, in the order of the input."""

    def __init__(
        self, options: Options, seed: int, folder: Path = Path(), files: Sequence[str] = ()
    ) -> None:
        self.options = options
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
        self._seen = Seen()

    def add(self, found: Read | Rejected) -> Read | Rejected:
        """Count a row. Return it as it is to be written: a repeated one comes back rejected.

        Raises DataError at a step of unknown type where those are refused.
        """
        self.rows += 1
        if isinstance(found, Read):
            found = self._once(found)
        if isinstance(found, Rejected):
            self.rejected[found.reason] += 1
            places = self.places.setdefault(found.reason, [])
            if len(places) < PLACES:
                places.append(f"{found.where}: {found.detail}")
        else:
            self._count(found)
        return found

    def _once(self, found: Read) -> Read | Rejected:
        """Leave out what was read before, and tell apart what only shares its id."""
        name, digest = _hash(found.id), int(found.digest[:16], 16)
        before = self._seen.get(name)
        if before is None:
            self._seen.put(name, digest)
            return found
        renamed = f"{found.id}~{found.digest[:8]}"
        if before == digest or self._seen.get(_hash(renamed)) is not None:
            detail = f"the same row, id {found.id!r}, was read before"
            return rejected(found.where, "duplicate", detail, b"{%b}" % found.body)
        self._seen.put(_hash(renamed), digest)
        self.noted["renamed"] += 1
        return replace(found, id=renamed)

    def _count(self, found: Read) -> None:
        for (kind, name), count in found.steps.items():
            if kind == "unknown" and self.options.unknown == "refuse":
                raise DataError(
                    f"{found.where}: a step of type {name!r}{near(name, KNOWN)}, which is not "
                    "known. Mend it, or keep such steps, untrained: --unknown keep."
                )
            self.steps[kind] += count
            if kind in self.types:
                self.types[kind][name] += count
        self.traces += 1
        self._content.update(f"{found.id}\0{found.where}\0{found.digest}\n".encode())
        self.forms[found.form] += 1
        self.noted.update(found.noted)
        self.ranks.append(rank(found.key, self.seed))

    @property
    def bad(self) -> int:
        """Return how many rows are rejected for what is wrong with them."""
        return self.rejected.total() - sum(self.rejected[reason] for reason in BY_CHOICE)

    @property
    def content(self) -> str:
        """Return 32 hex digits of all traces, which are the same for the same traces.jsonl."""
        return self._content.hexdigest()[:32]

    def refuse_if_more(self, share: float) -> None:
        """Raise DataError, with reasons and places, when more than `share` of rows are rejected.

        Repeated rows and those left out by choice do not count: nothing is wrong with them.
        """
        if not self.rows:
            read = f"{', '.join(self.files[:3])}{' and others' * (len(self.files) > 3)}"
            raise DataError(f"there is no row in {read}. Expected at least one.")
        bad = self.bad
        if bad <= share * self.rows and self.traces:
            return
        lines = [
            f"  {count:,} {reason} ({REJECTED[reason]})"
            + "".join(f"\n    {place}" for place in self.places[reason])
            for reason, count in self.rejected.most_common()
        ]
        allowed = f", more than --max_rejected_share {share:g}" if self.traces else ""
        said = f"{bad:,} of {self.rows:,} rows are no traces{allowed}"
        if not bad:
            said = f"None of {self.rows:,} rows is left"
        raise DataError(
            f"{said}:\n" + "\n".join(lines) + "\n"
            f"All are in {self.folder / REFUSED}. {self._cure()}"
        )

    def _cure(self) -> str:
        if not self.bad:
            return "Ask for less by --where, --answers or --decontaminate, or give other files."
        cures = ["mend them"]
        if self.rejected["field_missing"]:
            cures.append("name another field by --where")
        if self.options.form is None and self.rejected.keys() & {
            "no_form",
            "two_forms",
            "no_trace",
        }:
            cures.append("name their form by --form")
        if self.traces:
            cures.append("allow more of them by --max_rejected_share")
        return f"{', or '.join(cures).capitalize()}."

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
    """Return counts by name; of names that the data chooses, the many that are rare are one."""
    kept = dict(counts.most_common(NAMES))
    if rare := counts.total() - sum(kept.values()):
        kept["others"] = rare
    return {name: count for name, count in sorted(kept.items()) if count}
