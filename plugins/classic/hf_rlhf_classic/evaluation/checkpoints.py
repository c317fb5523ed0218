"""The saved models of an evaluation: which `--model NAME=WHERE` is which checkpoint of a name."""

from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import HfRlhfError, Problem
from hf_rlhf.evaluation import SavedModel, find_saved
from hf_rlhf_classic.evaluation.spec import SECTION, EvalSpec


@dataclass(frozen=True)
class Checkpoint:
    """One saved model, under the name that the table has for it."""

    name: str
    place: int
    """Which of the checkpoints of that name: one for each training seed."""
    saved: SavedModel

    @property
    def label(self) -> str:
        """Return the name, with the place where there are several of it: also a folder's name."""
        return self.name if self.place == 0 else f"{self.name}.{self.place + 1}"

    def as_json(self) -> dict[str, Any]:
        """Return what the evaluation's record says of it."""
        return self.saved.as_json()


def resolve_all(spec: EvalSpec) -> tuple[dict[str, list[Checkpoint]], list[Problem]]:
    """Return the checkpoints of each name, in order, and what is wrong with the others."""
    found: dict[str, list[Checkpoint]] = {}
    problems = []
    lacking: set[str] = set()
    for name, value in spec.models.items():
        for place, asked in enumerate(value if isinstance(value, list) else [value]):
            try:
                saved = find_saved(asked)
                found.setdefault(name, []).append(Checkpoint(name, place, saved))
            except HfRlhfError as error:
                lacking.add(name)
                problems.append(Problem(f"{SECTION}.models.{name}", str(error)))
    labels = [one.label for some in found.values() for one in some]
    for label in sorted({one for one in labels if labels.count(one) > 1}):
        what = f"{label!r} names two checkpoints: the second one of a name is called so."
        problems.append(Problem(f"{SECTION}.models.{label}", what, "Rename one of them."))
    # How many a name would have, had all of its own been found, is not known.
    whole = {name: some for name, some in found.items() if name not in lacking}
    for other in sorted({spec.baseline, spec.reference} & whole.keys(), key=str):
        count = len(whole[str(other)])
        for name, some in whole.items():
            if count not in (1, len(some)):
                what = f"has {len(some)} checkpoints, and {other!r}, to be compared with, {count}."
                fix = f"Give {other!r} one, or as many, in the same order."
                problems.append(Problem(f"{SECTION}.models.{name}", what, fix))
    return found, problems
