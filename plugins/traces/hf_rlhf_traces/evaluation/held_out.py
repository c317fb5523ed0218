"""Which samples are measured: of questions that no training has seen, the same for all models."""

import hashlib
import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.errors import DataError
from hf_rlhf_traces.blocks import blocks
from hf_rlhf_traces.building import traces_in
from hf_rlhf_traces.evaluation.metrics import TASKS, Task
from hf_rlhf_traces.evaluation.scores import Expected
from hf_rlhf_traces.rows import DATASETS, Chat
from hf_rlhf_traces.shards import dataset_rows, split_digest
from hf_rlhf_traces.split import Split
from hf_rlhf_traces.store import TRACES, Store

MADE_BY = "split_summary"
KNOWN_ANSWER = "expected_answer"
"""The field of a trace that has the right answer, or a list of those that count as right."""


@dataclass(frozen=True)
class Sample:
    """One prompt, and what is expected."""

    id: str
    trace: str
    question_key: str
    question: str
    step: int
    steps: int
    prompt: tuple[Chat, ...]
    expected: Expected


@dataclass(frozen=True)
class HeldOut:
    """The samples of a task, in the order of their rank."""

    task: Task
    split: str
    samples: tuple[Sample, ...]
    available: int
    """Rows of the split, of which the samples are some."""
    digest: str
    """SHA-256 of the file that they were read from."""
    trained: tuple[str, ...] = field(default=())
    """Ids of those whose question is in training too: empty unless that was asked for."""

    @property
    def questions(self) -> int:
        """How many questions they are of."""
        return len({sample.question_key for sample in self.samples})


def held_out(
    store: Store,
    task: Task,
    *,
    split: str = "validation",
    count: int = 50,
    seed: int = 42,
    allow_training: bool = False,
) -> HeldOut:
    """Return the first `count` samples of a task by a rank that depends on seed and id alone.

    So those of a smaller count are among those of a larger one, and adding data takes none out of
    its order. Where there are fewer, all are returned.

    Raises RunFolderError where the dataset is not made or stale, and DataError where the split has
    no rows, or a row's question is in training and `allow_training` is not set.
    """
    store.report(MADE_BY)
    path = store.folder / "datasets" / TASKS[task]
    if split == "train" and not allow_training:
        raise DataError(
            f"{path}: these questions were trained on. Results on them say what was memorised. "
            "If that is what you want to know: --allow_training_questions."
        )
    rows: list[Mapping[str, Any]] = []
    available = 0

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal available
        for row in dataset_rows(path, split):
            available += 1
            yield row

    rows = heapq.nsmallest(count, counted(), key=lambda row: (_rank(seed, row["id"]), row["id"]))
    if not rows:
        raise DataError(
            f"{path} has no rows: there is nothing to measure on. Read more traces, or a larger "
            "share for it: hf-rlhf traces read FILE --out DIR --validation_ratio 0.3 --overwrite"
        )
    trained = _trained(store, rows)
    if trained and not allow_training:
        raise DataError(
            f"{path}: {len(trained)} of {len(rows)} rows are of questions in training, the first "
            f"is {trained[0]!r}. Build the datasets anew, so that they share one split, or say "
            "--allow_training_questions."
        )
    samples = _samples(store, task, rows, split)
    return HeldOut(task, split, samples, available, split_digest(path, split), tuple(trained))


def _rank(seed: int, sample: str) -> bytes:
    text = f"{seed}\0{sample}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).digest()


def _trained(store: Store, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of rows whose question is in training, by the split or in fact."""
    split = Split.of_report(store.report("read"))
    keys = {row["question_key"] for row in rows}
    visited = {key for key in keys if split.of(key) == "train"} | _in_training(store, keys)
    return [row["id"] for row in rows if row["question_key"] in visited]


def _in_training(store: Store, keys: set[str]) -> set[str]:
    """Return which of the questions are in the training split of any dataset."""
    result: set[str] = set()
    for dataset in DATASETS:
        folder = store.folder / "datasets" / dataset
        for row in dataset_rows(folder, "train", ["question_key"]):
            if row["question_key"] in keys:
                result.add(row["question_key"])
    return result


def _samples(
    store: Store, task: Task, rows: Sequence[Mapping[str, Any]], split: str
) -> tuple[Sample, ...]:
    contexts = _contexts(store, {row["id"] for row in rows}, split)
    answers = known_answers(store, {row["trace"] for row in rows})
    created = []
    for row in rows:
        if row["id"] not in contexts:
            raise DataError(
                f"{store.folder / 'datasets' / 'steps'} lacks the sample {row['id']!r}, of which "
                f"{TASKS[task]} has a summary. Build both anew: hf-rlhf traces steps, {MADE_BY}."
            )
        expected = Expected(task, _text(row), contexts[row["id"]], answers.get(row["trace"], ()))
        created.append(
            Sample(
                **{name: row[name] for name in ("id", "trace", "question_key", "question")},
                step=row["step"],
                steps=row["steps"],
                prompt=tuple(row["prompt"]),
                expected=expected,
            )
        )
    return tuple(created)


def _text(row: Mapping[str, Any]) -> str:
    return "".join(turn["content"] for turn in row["completion"])


def _contexts(store: Store, ids: Collection[str], split: str) -> dict[str, str]:
    return {
        row["id"]: row["prompt"]
        for row in dataset_rows(store.folder / "datasets" / "steps", split, ["id", "prompt"])
        if row["id"] in ids
    }


def known_answers(store: Store, traces: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the answers that the traces' fields give as right, by trace id."""
    answers: dict[str, tuple[str, ...]] = {}
    for block in blocks(store.folder / TRACES):
        for trace in traces_in(block):
            provided = trace.fields.get(KNOWN_ANSWER)
            if trace.id in traces and provided is not None:
                listed = provided if isinstance(provided, list) else [provided]
                answers[trace.id] = tuple(str(item) for item in listed if str(item).strip())
    return answers
