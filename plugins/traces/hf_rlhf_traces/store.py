"""The folder that the verbs work in: which steps are made there, from what, and what came of them.

DIR/
  traces.json            this manifest: settings, sources and report of each step
  traces.jsonl           the traces read, in the typed form
  rejects.jsonl          the rows that could not be read: where, reason, detail, the row
  summaries/             summaries made so far, and those that failed
  datasets/              what is trained on and pushed: a folder for each dataset, and their card
  runs/ eval/ analysis/  what training, evaluation and analysis write
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage import as_json, atomic_write_json, clear_unfinished

MANIFEST = "traces.json"
TRACES = "traces.jsonl"
REJECTS = "rejects.jsonl"
REFUSED = "rejects.refused.jsonl"
"""The rejects of a reading that had too many, and so was not taken."""
SCHEMA = 1
_PARTS = {"settings", "after", "report", "digest"}
_PASSING = {"seconds", "sources", "this_call"}
"""Of a report: how it was made, not what. What follows from the same content is not stale."""
State = Literal["to do", "done", "stale"]


@dataclass(frozen=True)
class Store:
    """A folder of steps. A step is `done`, or `stale` when what it was made from was made anew."""

    folder: Path
    chosen_by: str = "DIR"
    """What the user of a verb chooses the folder by, for messages."""

    @classmethod
    def make(cls, folder: Path) -> "Store":
        """Return the store in a folder, made if it is new.

        Raises RunFolderError when the folder holds other things.
        """
        from hf_rlhf.storage import claimed

        store = cls(folder, "--out")
        if not (folder / MANIFEST).exists():
            # Another process may make it at this moment: what it holds is looked at first.
            if _holds_other(folder) and not (folder / MANIFEST).exists():
                what = f"holds other things and no {MANIFEST}" if folder.is_dir() else "is a file"
                raise RunFolderError(f"{folder} {what}. Choose another --out.")
            with claimed(folder, store.chosen_by):
                if not (folder / MANIFEST).exists():  # or another process was first
                    store._write({})
        store._entries()
        return store

    @classmethod
    def open(cls, folder: Path) -> "Store":
        """Return the store in a folder. Raises RunFolderError when there is none."""
        if not (folder / MANIFEST).exists():
            raise RunFolderError(
                f"{folder} has no {MANIFEST}: nothing was read into it. "
                f"First: hf-rlhf traces read FILE --out {folder}"
            )
        store = cls(folder)
        store._entries()
        return store

    def report(self, step: str) -> Mapping[str, Any]:
        """Return what came of a step.

        Raises RunFolderError when it is not done, or when something it was made from has changed.
        """
        state = self.state(step)
        if state == "done":
            report: Mapping[str, Any] = self._entries()[step]["report"]
            return report
        what = "is not made yet" if state == "to do" else "was made from what has changed since"
        words = [f"traces {one} {self._given(one)}" for one in self._undone(step)]
        said = ", then ".join(f"hf-rlhf {one}" for one in words)
        raise RunFolderError(f"{self.folder}: {step} {what}. First: {said}")

    def _given(self, step: str) -> str:
        return f"FILE --out {self.folder}" if step == "read" else str(self.folder)

    def _undone(self, step: str) -> list[str]:
        """Return the steps to be made until `step` is done, in their order; it is the last."""
        from hf_rlhf_traces.command import VERBS

        entry = self._entries().get(step)
        # The format has no verb: the first that needs it makes it.
        before = [one for one in entry["after"] if one in VERBS] if entry else []
        chain = [two for one in before if self.state(one) != "done" for two in self._undone(one)]
        return [*dict.fromkeys(chain), step]

    def digest(self, step: str) -> str:
        """Return what a step is known by to what is made of it. Raises as `report` does."""
        self.report(step)
        return str(self._entries()[step]["digest"])

    def settings(self, step: str) -> Mapping[str, Any]:
        """Return the settings that a step was made with; {} if it was not."""
        entry = self._entries().get(step)
        return dict(entry["settings"]) if entry else {}

    def state(self, step: str, settings: Mapping[str, Any] | None = None) -> State:
        """Return how a step stands; with `settings`, it is stale if it was made with others."""
        entries = self._entries()
        entry = entries.get(step)
        if entry is None:
            return "to do"
        if settings is not None and _plain(settings) != entry["settings"]:
            return "stale"
        for other, digest in entry["after"].items():
            if self.state(other) != "done" or entries[other]["digest"] != digest:
                return "stale"
        return "done"

    def check(self, step: str, settings: Mapping[str, Any], *, overwrite: bool = False) -> State:
        """Return how a step stands.

        Raises RunFolderError, with the difference, when it was made with other settings and
        `overwrite` is not set.
        """
        entry = self._entries().get(step)
        asked = _plain(settings)
        if entry is not None and entry["settings"] != asked and not overwrite:
            was = entry["settings"]
            names = [name for name in {**was, **asked} if was.get(name) != asked.get(name)]
            shown = "".join(f"\n  - {n}: {was.get(n)!r} -> {asked.get(n)!r}" for n in names)
            raise RunFolderError(
                f"{self.folder} holds {step} made otherwise (there -> here):{shown}\n"
                "Choose another folder, or say --overwrite."
            )
        return self.state(step, settings)

    @contextmanager
    def making(
        self,
        step: str,
        settings: Mapping[str, Any],
        *,
        after: Sequence[str] = (),
        replacing: bool = False,
    ) -> Iterator[dict[str, Any]]:
        """Give a dictionary for the report of a step; it is noted when the block ends well.

        The folder is held meanwhile: RunFolderError when another process works in it, or when one
        of the steps it is made from, `after`, is not done. With `replacing`, the step is not done
        meanwhile, so that a process killed as it swaps old files for new ones leaves no word on
        the wrong ones; an error leaves the step as it was.
        """
        from hf_rlhf.storage import claimed

        with claimed(self.folder, self.chosen_by):
            for other in after:
                self.report(other)
            clear_unfinished(self.folder)
            report: dict[str, Any] = {}
            with self._withdrawn(step) if replacing else nullcontext():
                yield report
            entries = self._entries()
            made: dict[str, Any] = {
                "settings": _plain(settings),
                "after": {other: entries[other]["digest"] for other in after},
                "report": _plain(report),
            }
            self._write({**entries, step: {**made, "digest": _digest(made)}})

    @contextmanager
    def _withdrawn(self, step: str) -> Iterator[None]:
        entries = self._entries()
        if step not in entries:
            yield
            return
        self._write({name: one for name, one in entries.items() if name != step})
        try:
            yield
        except BaseException:
            self._write({**self._entries(), step: entries[step]})
            raise

    def _entries(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"it has schema {content['schema']}, this package reads {SCHEMA}")
            steps = dict(content["steps"])
            for name, entry in steps.items():
                if not isinstance(entry, dict) or not entry.keys() >= _PARTS:
                    raise ValueError(f"its step {name!r} lacks {', '.join(sorted(_PARTS))}")
            return steps
        except (OSError, ValueError, KeyError, TypeError) as error:
            said = f"it has no {error}" if isinstance(error, KeyError) else error
            raise RunFolderError(
                f"{path} cannot be read ({said}). Restore it, or choose another folder."
            ) from error

    def _write(self, entries: Mapping[str, Any]) -> None:
        atomic_write_json(self.folder / MANIFEST, {"schema": SCHEMA, "steps": entries})


def _holds_other(folder: Path) -> bool:
    from hf_rlhf.storage import LOCK_NAME, OWNER_NAME

    if not folder.is_dir():
        return folder.exists()
    # A process that was killed before it had written the manifest leaves these.
    ours = (LOCK_NAME, OWNER_NAME, f".{MANIFEST}.")
    return any(not path.name.startswith(ours) for path in folder.iterdir())


def _digest(made: Mapping[str, Any]) -> str:
    """Return what later steps know a step by: 16 hex digits, the same if it is made again."""
    report = {name: one for name, one in made["report"].items() if name not in _PASSING}
    text = json.dumps({**made, "report": report}, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """As it will be read back from JSON."""
    return json.loads(json.dumps(as_json(value)[0]))
