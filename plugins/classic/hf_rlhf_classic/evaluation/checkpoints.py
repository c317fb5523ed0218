"""The saved models of an evaluation: which `--model NAME=WHERE` is which checkpoint of a name."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.errors import HfRlhfError, Problem
from hf_rlhf.evaluation import SavedModel, find_saved
from hf_rlhf_classic.evaluation.spec import SECTION, EvalSpec


@dataclass(frozen=True)
class Checkpoint:
    """One saved model, under the name that the table has for it."""

    name: str
    number: int
    """Which of the checkpoints of that name: one for each training seed."""
    saved: SavedModel = field(hash=False)

    @property
    def label(self) -> str:
        """Return the name, with the number from the second one on: also a folder's name."""
        return self.name if self.number == 0 else f"{self.name}.{self.number + 1}"

    def as_json(self) -> dict[str, Any]:
        """Return its entry in the results."""
        return self.saved.as_json()

    def load(self, spec: EvalSpec, device: Any) -> AbstractContextManager[Any]:
        """Yield the model, ready to generate, and free its memory at the end."""
        return self.saved.load(
            device,
            dtype=spec.dtype,
            attn_implementation=spec.attn_implementation,
            trust_remote_code=spec.trust_remote_code,
        )


def resolve_all(spec: EvalSpec) -> tuple[dict[str, list[Checkpoint]], list[Problem]]:
    """Return the checkpoints of each name, in order, and what is wrong with the others."""
    checkpoints: dict[str, list[Checkpoint]] = {}
    problems = []
    lacking: set[str] = set()
    for name, value in spec.models.items():
        for number, source in enumerate(value if isinstance(value, list) else [value]):
            try:
                saved = find_saved(source)
                checkpoints.setdefault(name, []).append(Checkpoint(name, number, saved))
            except HfRlhfError as error:
                lacking.add(name)
                problems.append(Problem(f"{SECTION}.models.{name}", str(error)))
    labels = [checkpoint.label for some in checkpoints.values() for checkpoint in some]
    for label in sorted({checkpoint for checkpoint in labels if labels.count(checkpoint) > 1}):
        what = f"{label!r} names two checkpoints: it is also the label of a name's second one."
        problems.append(Problem(f"{SECTION}.models.{label}", what, "Rename one of them."))
    # How many a name would have, had all of its own resolved, is not known.
    whole = {name: some for name, some in checkpoints.items() if name not in lacking}
    for other in sorted({spec.baseline, spec.reference} & whole.keys(), key=str):
        count = len(whole[str(other)])
        for name, some in whole.items():
            if count not in (1, len(some)):
                what = f"has {len(some)} checkpoints, but {other!r}, to be compared with, {count}."
                fix = f"Give {other!r} one, or as many, in the same order."
                problems.append(Problem(f"{SECTION}.models.{name}", what, fix))
    return checkpoints, problems
