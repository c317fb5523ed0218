"""Select samples of questions outside any training, the same for all models."""

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.evaluation.metrics import TASKS, TaskName
from hf_rlhf_traces.evaluation.scores import Expected
from hf_rlhf_traces.rows import DATASETS, Chat
from hf_rlhf_traces.shards import dataset_rows, split_digest
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import Store

BUILT_BY = "split_summary"
SPLIT = "validation"


@dataclass(frozen=True)
class Sample:
    """A prompt with the expected reply."""

    id: str
    question_key: str
    question: str
    step: int
    """Number of result groups in the context."""
    steps: int
    """Number of result groups in the whole trace."""
    prompt: Sequence[Chat]
    expected: Expected


@dataclass(frozen=True)
class HeldOut:
    """The samples of a task, ordered by rank."""

    task: TaskName
    samples: tuple[Sample, ...]
    available: int
    """Number of rows in the split."""
    digest: str
    """SHA-256 of the source file."""

    @property
    def questions(self) -> int:
        """Return the number of distinct questions."""
        return len({sample.question_key for sample in self.samples})


def held_out(store: Store, task: TaskName, *, count: int = 50, seed: int = 42) -> HeldOut:
    """Return the first `count` samples of a task by a rank that depends only on seed and id.

    A smaller selection is therefore part of a larger one, and adding data changes no order. If
    there are fewer samples, all are returned.

    Raises RunFolderError if the dataset is missing or stale, and DataError if the split is empty or
    a row's question is in training.
    """
    store.report(BUILT_BY)
    path = store.folder / "datasets" / TASKS[task]
    ids = [row["id"] for row in dataset_rows(path, SPLIT, ["id"])]
    chosen = heapq.nsmallest(count, ids, key=lambda key: (_rank(seed, key), key))
    order = {key: position for position, key in enumerate(chosen)}
    rows = [row for row in dataset_rows(path, SPLIT) if row["id"] in order]
    rows.sort(key=lambda row: order[row["id"]])
    if not rows:
        raise DataError(
            f"{path} has no rows: there is nothing to measure on. Read more traces, or a larger "
            "share for it: hf-rlhf traces build FILE --out DIR --validation_ratio 0.3 --overwrite"
        )
    if trained := _trained(store, rows):
        raise DataError(
            f"{path}: {len(trained)} of {len(rows)} rows are of questions in training, the first "
            f"is {trained[0]!r}. Build the datasets anew, so that they share one split."
        )
    return HeldOut(task, _samples(store, task, rows), len(ids), split_digest(path, SPLIT))


def _rank(seed: int, sample: str) -> bytes:
    text = f"{seed}\0{sample}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


def _trained(store: Store, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the ids of rows whose question is in training, by the split or in any dataset."""
    split = Split.of_report(store.report("build"))
    keys = {row["question_key"] for row in rows}
    in_training = {key for key in keys if split.of(key) == "train"}
    for dataset in DATASETS:
        folder = store.folder / "datasets" / dataset
        questions = dataset_rows(folder, "train", ["question_key"])
        in_training |= keys.intersection(row["question_key"] for row in questions)
    return tuple(row["id"] for row in rows if row["question_key"] in in_training)


def _samples(store: Store, task: TaskName, rows: Sequence[Mapping[str, Any]]) -> tuple[Sample, ...]:
    ids = {row["id"] for row in rows}
    steps = store.folder / "datasets" / "steps"
    steps_by_id = {
        row["id"]: row
        for row in dataset_rows(steps, SPLIT, ["id", "prompt", "expected_answers"])
        if row["id"] in ids
    }
    samples = []
    for row in rows:
        if (step := steps_by_id.get(row["id"])) is None:
            raise DataError(
                f"{steps} lacks the sample {row['id']!r}, of which {TASKS[task]} has a summary. "
                f"Build both again: hf-rlhf traces build FILE --out DIR, then {BUILT_BY}."
            )
        text = "".join(turn["content"] for turn in row["completion"])
        expected = Expected(task, text, step["prompt"], tuple(step["expected_answers"]))
        keys = ("id", "question_key", "question", "step", "steps")
        samples.append(
            Sample(**{key: row[key] for key in keys}, prompt=row["prompt"], expected=expected)
        )
    return tuple(samples)
