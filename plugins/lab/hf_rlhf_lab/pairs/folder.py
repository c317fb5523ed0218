"""Store pairs, folds and scores in the folder of `hf-rlhf data confident_pairs`."""

import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hf_rlhf.errors import DataError, RunFolderError
from hf_rlhf.storage import as_json, atomic_write_text
from hf_rlhf_lab.pairs.choice import Array

Row = Mapping[str, Any]
SPLITS = ("train", "test")


@dataclass(frozen=True)
class PairFolder:
    """Pairs as JSON lines, each training pair's fold, and the scores of each cycle."""

    path: Path

    def write(self, splits: Mapping[str, Iterable[Row]], folds: Sequence[int]) -> list[Path]:
        """Write the pairs and their folds; return the files."""
        for split in SPLITS:
            atomic_write_text(self._rows(split), lines(splits.get(split, ())))
        atomic_write_text(self._folds, json.dumps(list(folds)))
        return [*map(self._rows, SPLITS), self._folds]

    def clear(self) -> None:
        """Delete the written files except the hidden lock."""
        for path in self.path.glob("[!.]*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def rows(self, split: str) -> list[Row]:
        """Return the pairs of a split, which may be empty. Raises DataError."""
        try:
            with self._rows(split).open(encoding="utf-8") as file:
                return [json.loads(line) for line in file]
        except OSError as error:
            fix = "Write it with `hf-rlhf data confident_pairs FILE --out FOLDER`."
            raise DataError(f"{self.path} has no pairs ({error.strerror}). {fix}") from error

    @cached_property
    def folds(self) -> list[int]:
        """The fold of each training pair."""
        return list(json.loads(self._folds.read_text(encoding="utf-8")))

    def run_folder(self, cycle: int, fold: int) -> Path:
        """Return the folder of the run whose model scores a fold."""
        return self.path / f"cycle-{cycle}" / f"fold-{fold}"

    def scores_file(self, cycle: int, fold: int) -> Path:
        """Return the file with the scores of a fold's pairs, in their order."""
        return self.run_folder(cycle, fold).with_suffix(".scores.json")

    def margins(self, cycle: int) -> Array:
        """Return the chosen minus the rejected score, NaN if missing.

        Raises RunFolderError if a fold has no scores yet.
        """
        margins, folds = np.full(len(self.folds), np.nan), np.array(self.folds)
        for fold in sorted(set(self.folds)):
            path = self.scores_file(cycle, fold)
            try:
                scores = np.array(json.loads(path.read_text(encoding="utf-8")), np.float64)
            except (OSError, ValueError) as error:
                fix = "Finish `hf-rlhf data confident_pairs` for this folder."
                raise RunFolderError(f"{path} cannot be read ({error}). {fix}") from error
            margins[folds == fold] = scores[:, 0] - scores[:, 1]
        return margins

    def last_cycle(self) -> int:
        """Return the number of the last scored cycle. Raises RunFolderError."""
        cycles = {int(path.parent.name[6:]) for path in self.path.glob("cycle-*/*.scores.json")}
        if not cycles:
            fix = "Finish `hf-rlhf data confident_pairs` for it."
            raise RunFolderError(f"{self.path} has no scores. {fix}")
        return max(cycles)

    def _rows(self, split: str) -> Path:
        return self.path / "pairs" / f"{split}.jsonl"

    @property
    def _folds(self) -> Path:
        return self.path / "pairs" / "folds.json"


def lines(rows: Iterable[Row]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(as_json(dict(row))) + "\n" for row in rows)


def split_folds(rows: Sequence[Row], count: int, seed: int) -> list[int]:
    """Return the fold of each row; rows with the same prompt share a fold.

    Raises DataError for an empty fold.
    """
    prompts = [json.dumps(row["prompt"]) for row in rows]
    different = list(dict.fromkeys(prompts))
    if len(different) < count:
        raise DataError(
            f"{count} folds need as many different prompts, and the {len(rows):,} training pairs "
            f"have {len(different):,}. Bring more pairs, or use fewer `folds`."
        )
    random.Random(seed).shuffle(different)
    folds = {prompt: number % count for number, prompt in enumerate(different)}
    return [folds[prompt] for prompt in prompts]
