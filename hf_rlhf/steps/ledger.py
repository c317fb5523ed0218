"""The ledger of a folder: which steps are finished, with their inputs, outputs and results."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf.steps.digests import differences, digest, file_digest, file_digests, plain
from hf_rlhf.storage.files import atomic_write_json
from hf_rlhf.storage.record import now
from hf_rlhf.storage.secrets import redact_secrets

SCHEMA = 1
_FIELDS = {"inputs", "after", "outputs", "result", "notes", "digest", "finished"}


@dataclass
class Recording:
    """The record of a step, written when it ends."""

    result: dict[str, Any] = field(default_factory=dict)
    """Its result. If it changes, dependent steps are stale."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Seconds, retries and the like, on which nothing depends."""
    outputs: list[Path] = field(default_factory=list)
    """Files and folders that it wrote in the ledger's folder. If any changes or is missing, the
    step is stale. All files are read at each check."""


class Ledger:
    """The finished steps of a folder, in a JSON file that is replaced atomically.

    A step is `to do`, `done`, or `stale`: its inputs, dependencies or outputs changed since it
    ended.
    """

    def __init__(
        self,
        folder: Path,
        name: str = "steps.json",
        *,
        folder_option: str = "folder",
        command: Callable[[str], str] | None = None,
    ) -> None:
        """Open the ledger `folder/name`; a missing file is an empty ledger.

        Args:
            folder: the working folder of the steps.
            name: the file's name.
            folder_option: the option that sets the folder, for messages.
            command: the command line that runs a step, for messages.

        Raises RunFolderError when the file cannot be read.
        """
        self.folder = folder
        self.path = folder / name
        self.folder_option = folder_option
        self.command = command
        self._locked = False
        self.entries()

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the entries of finished steps in the order in which they ended.

        Raises RunFolderError if the file is damaged.
        """
        return dict(self._content()["steps"])

    def failures(self) -> dict[str, str]:
        """Return the reason for each step whose last attempt failed. Raises like `entries`."""
        return dict(self._content().get("failures", {}))

    def _content(self) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"it has schema {content['schema']}, this package reads {SCHEMA}")
            for name, entry in content["steps"].items():
                if missing := _FIELDS - set(entry):
                    raise ValueError(f"its step {name!r} lacks {', '.join(sorted(missing))}")
        except FileNotFoundError:
            return {"steps": {}}
        except (OSError, ValueError, KeyError, TypeError) as error:
            cause = f"it has no {error}" if isinstance(error, KeyError) else error
            raise RunFolderError(
                f"{self.path} cannot be read ({cause}). Restore it, or choose another "
                f"{self.folder_option}."
            ) from error
        return content

    def reasons(
        self,
        step: str,
        inputs: Mapping[str, Any] | None = None,
        after: Sequence[str] | None = None,
    ) -> list[str] | None:
        """Return why a step is stale: [] if it is done, None if it was never finished.

        `inputs` and `after` are the step's current inputs; by default the recorded inputs.
        """
        entries = self.entries()
        if (entry := entries.get(step)) is None:
            return None
        reasons = [] if inputs is None else differences(entry["inputs"], inputs)
        recorded = entry["after"]
        if after is not None and set(after) != set(recorded):
            reasons.append(f"it reads other steps ({', '.join(recorded)} -> {', '.join(after)})")
        for other, digest_then in recorded.items():
            if self.reasons(other) != []:
                reasons.append(f"step {other} is not up to date")
            elif entries[other]["digest"] != digest_then:
                reasons.append(f"step {other} has a new result")
        current = self._output_digests(entry["outputs"])
        return reasons + [f"output {line}" for line in differences(entry["outputs"], current)]

    def entry(self, step: str) -> dict[str, Any]:
        """Return the entry of a step that is done: inputs, result, notes, outputs.

        Raises RunFolderError with the steps to run first, if it is not done or stale.
        """
        if (reasons := self.reasons(step)) == []:
            return self.entries()[step]
        state = "not done yet" if reasons is None else f"not up to date ({'; '.join(reasons)})"
        due = (self.command(each) if self.command else each for each in self._due(step))
        commands = ", then ".join(dict.fromkeys(due))
        raise RunFolderError(f"{self.folder}: step {step} is {state}. First: {commands}")

    def result(self, step: str) -> dict[str, Any]:
        """Return the result of a step. Raises like `entry`."""
        return dict(self.entry(step)["result"])

    def refuse_changed(self, step: str, inputs: Mapping[str, Any]) -> None:
        """Raise RunFolderError with the differences if a step was done with other inputs."""
        entry = self.entries().get(step)
        if entry is None or not (lines := differences(entry["inputs"], inputs)):
            return
        text = "".join(f"\n  - {line}" for line in lines)
        raise RunFolderError(
            f"{self.folder} holds step {step} done with other settings (there -> here):{text}\n"
            f"Choose another {self.folder_option}, or add --overwrite."
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder; raise RunFolderError if another process works in it."""
        from hf_rlhf.storage.lock import locked_folder

        with locked_folder(self.folder, self.folder_option):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    @contextmanager
    def recording(
        self,
        step: str,
        inputs: Mapping[str, Any],
        *,
        after: Sequence[str] = (),
        replaces: bool = False,
    ) -> Iterator[Recording]:
        """Yield the record of a step, which is finished when the block ends without an error.

        The folder is locked meanwhile. With `replaces`, the old entry is removed meanwhile, so that
        a killed process leaves no entry for the wrong files; an error restores it. Raises
        RunFolderError if another process works in the folder or a step of `after` is not done.
        """
        with nullcontext() if self._locked else self.locked():
            digests = {other: self.entry(other)["digest"] for other in after}
            old = self.entries().get(step)
            if replaces and old is not None:
                self.remove(step)
            recording = Recording()
            try:
                yield recording
            except BaseException:
                if replaces and old is not None:
                    self._write({**self.entries(), step: old})
                raise
            content: dict[str, Any] = plain(
                {
                    "inputs": inputs,
                    "after": digests,
                    "outputs": self._output_digests(map(self._relative, recording.outputs)),
                    "result": recording.result,
                }
            )
            entry = {**content, "notes": plain(recording.notes), "digest": digest(content)}
            others = {name: each for name, each in self.entries().items() if name != step}
            self._write({**others, step: {**entry, "finished": now()}})

    def fail(self, step: str, why: str) -> None:
        """Record why a step failed, until it is done; an empty text clears it."""
        failures = {**self.failures(), step: redact_secrets(why)}  # the end of a log
        self._write(self.entries(), {name: text for name, text in failures.items() if text})

    def remove(self, step: str) -> None:
        """Remove the entry of a step, so that it runs again."""
        self._write({name: entry for name, entry in self.entries().items() if name != step})

    def _due(self, step: str) -> list[str]:
        """Return the steps to run for `step` in order, ending with `step`."""
        entry = self.entries().get(step)
        before = entry["after"] if entry else ()
        due = [each for other in before if self.reasons(other) != [] for each in self._due(other)]
        return [*dict.fromkeys(due), step]

    def _relative(self, path: Path) -> str:
        return path.as_posix().removeprefix(f"{self.folder.as_posix()}/")

    def _output_digests(self, names: Any) -> dict[str, Any]:
        """Return digests of a file, or of each file in a folder, by name."""
        digests: dict[str, Any] = {}
        for name in names:
            path = self.folder / name
            if path.is_dir():
                digests[name] = file_digests(path)
            elif path.exists():
                digests[name] = file_digest(path)
        return digests

    def _write(self, steps: Mapping[str, Any], failures: Mapping[str, str] | None = None) -> None:
        kept = self.failures() if failures is None else failures
        content = {"schema": SCHEMA, "steps": steps, **({"failures": kept} if kept else {})}
        atomic_write_json(self.path, content)
