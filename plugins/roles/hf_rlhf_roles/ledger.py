"""What a workspace remembers of each step: its inputs and the adapter they made, by hash."""

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf.storage import atomic_write_json
from hf_rlhf_roles.data import Inspected, first_shared, read_marks, write_marks
from hf_rlhf_roles.role import Role
from hf_rlhf_roles.workspace import LEDGER, Workspace

SCHEMA = 1


@dataclass
class Ledger:
    """The ledger of a workspace; `save` writes it."""

    folder: Path
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `role/stage`: inputs, adapter and its seal, what else was sealed, run id, time."""
    current: dict[str, str] = field(default_factory=dict)
    """By folder, `adapters/ROLE`: the step whose adapter lies there."""

    @classmethod
    def of(cls, workspace: Workspace) -> "Ledger":
        """Read a workspace's ledger; a new one is empty. Raises RunFolderError if damaged."""
        path = workspace.folder / LEDGER
        if not path.exists():
            return cls(workspace.folder)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"it has schema {content['schema']}, this package reads {SCHEMA}")
            return cls(workspace.folder, dict(content["steps"]), dict(content["current"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path} cannot be read ({error}). Restore it; without it nothing says which "
                "adapter was trained on what. To begin anew, move it and adapters/ away."
            ) from error

    def save(self) -> None:
        """Write it, whole or not at all."""
        content = {"schema": SCHEMA, "steps": self.steps, "current": self.current}
        atomic_write_json(self.folder / LEDGER, content)

    def note(self, key: str, entry: Mapping[str, Any], data: Inspected, placed: str) -> None:
        """Remember a step that is finished, and where its adapter was placed."""
        write_marks(data.marks, self._marks(key))
        self.steps[key] = dict(entry)
        self.current[placed] = key
        self.save()

    def marks(self, key: str) -> "array[int]":
        """Return the fingerprints of the rows that a step was trained on."""
        path = self._marks(key)
        if not path.exists():
            raise RunFolderError(
                f"{path} is missing: the workspace is incomplete, and nothing says which rows "
                f"{key} was trained on. Restore it, or train {key} again."
            )
        return read_marks(path)

    def _marks(self, key: str) -> Path:
        return self.folder / "ledger" / f"{key.replace('/', '.')}.rows"


@dataclass(frozen=True)
class Trained:
    """Rows that a step of another role was, or will be, trained on."""

    isolated: bool
    """Whether that role is isolated, or was when it was trained."""
    marks: "array[int]"


def check_isolation(role: Role, data: Inspected, others: Mapping[str, Trained]) -> list[str]:
    """Return which steps of other roles share rows; `others` is by `role/stage`.

    Raises DataError when one of the two roles is isolated.
    """
    shared = [key for key, other in others.items() if data.shares(other.marks)]
    for key in shared:
        if role.isolated or others[key].isolated:
            kept = role.name if role.isolated else key.split("/")[0]
            raise DataError(
                f"{data.name}: {data.shares(others[key].marks)} of its rows, prompts or targets "
                f"are also in the data of {key}, and role {kept!r} is isolated: its data never "
                f"mixes with another role's. {_first(data, others[key].marks)}Take them out, or "
                "say --allow_shared_data (it is then recorded, and told on the card)."
            )
    return shared


def _first(data: Inspected, marks: "array[int]") -> str:
    where = first_shared(data, marks)
    return f"The first is {where}. " if where else ""
