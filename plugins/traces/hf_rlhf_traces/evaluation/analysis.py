"""Where models do well and badly: by depth of the trace, by length of the context, case by case."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.errors import RunFolderError
from hf_rlhf_traces.evaluation.intervals import Estimate
from hf_rlhf_traces.evaluation.metrics import TASKS, Task
from hf_rlhf_traces.evaluation.results import FOLDER as EVAL
from hf_rlhf_traces.evaluation.results import RESULTS, Scored, means
from hf_rlhf_traces.evaluation.scoring import SCORES
from hf_rlhf_traces.shards import split_digest
from hf_rlhf_traces.store import Store

JUDGED_BY: Mapping[Task, Sequence[str]] = {
    "prefix": (
        *("format_valid", "kind_right", "summary_rouge_l", "quotes_recall"),
        *("answer_f1", "query_f1"),
    ),
    "only": ("format_valid", "kind_right", "answer_f1", "query_f1"),
}
"""What a case is judged by, and what is shown by group: all from 0 to 1, higher is better."""


@dataclass(frozen=True)
class Analysed:
    """The scores of an evaluation: label -> task -> its samples."""

    results: Mapping[str, Any]
    scored: Mapping[str, Mapping[Task, Sequence[Scored]]]

    @property
    def tasks(self) -> list[Task]:
        """The tasks that were measured."""
        return [task for task in TASKS if task in self.results["data"]]


@dataclass(frozen=True)
class Groups:
    """Samples of a task parted by something, with the means of each model in each part."""

    task: Task
    by: str
    """The label of the axis."""
    names: Sequence[str]
    """Of the parts, in order."""
    means: Mapping[str, Sequence[Mapping[str, Estimate | None]]]
    """label -> for each part, metric -> mean."""


def load(store: Store, labels: Sequence[str] = ()) -> Analysed:
    """Return the scores of the last evaluation of a store, of some models or of all.

    Raises RunFolderError where there is none, or the datasets have changed since, or a label is
    unknown.
    """
    folder = store.folder / EVAL
    again = f"First: hf-rlhf traces eval {store.folder}"
    try:
        results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{folder} has no {RESULTS}: nothing is evaluated. {again}") from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder / RESULTS} cannot be read: {error}. {again}") from error
    for task, data in results["data"].items():
        _check_current(store, task, data, again)
    known = list(results["models"])
    if unknown := [one for one in labels if one not in known]:
        raise RunFolderError(
            f"--model {unknown[0]}: {folder / RESULTS} has no such label. It has: "
            f"{', '.join(known)}. `eval` takes several models at once."
        )
    scored = {
        label: {
            task: _read(folder / found["folder"] / SCORES, again)
            for task, found in results["models"][label]["tasks"].items()
        }
        for label in (labels or known)
    }
    return Analysed(results, scored)


def _check_current(store: Store, task: str, data: Mapping[str, Any], again: str) -> None:
    folder = store.folder / "datasets" / data["dataset"]
    if split_digest(folder, data["split"]) != data["sha256"]:
        raise RunFolderError(f"{folder} has changed since {task} was evaluated. {again}")


def _read(path: Path, again: str) -> list[Scored]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [Scored(**json.loads(line)) for line in lines]
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. {again}") from error


def by_depth(analysed: Analysed, task: Task) -> Groups:
    """Part samples by the number of groups of results of their whole trace."""
    return _grouped(analysed, task, "results in the whole trace", lambda row: (row.steps, ""))


def by_step(analysed: Analysed, task: Task) -> Groups:
    """Part samples by the number of groups of results that stand in their context."""
    return _grouped(analysed, task, "results in the context", lambda row: (row.step, ""))


def by_length(analysed: Analysed, task: Task, bins: int = 4) -> Groups:
    """Part samples into bins of about as many each, by the tokens of their context.

    Tokens are those of the first model; a bin that would be empty, as many contexts are of one
    length, is not there.
    """
    import numpy as np

    first = next(iter(analysed.scored.values()))[task]
    length = {row.id: row.context_tokens for row in first}
    if not length:
        return Groups(task, "tokens of the context", (), {label: () for label in analysed.scored})
    sizes = np.array(sorted(length.values()))
    edges = sorted({int(one) for one in np.quantile(sizes, np.linspace(0, 1, bins + 1))[1:-1]})

    def part(row: Scored) -> tuple[int, str]:
        size = length.get(row.id, row.context_tokens)
        place = sum(size > edge for edge in edges)
        inside = [one for one in sizes if sum(one > edge for edge in edges) == place]
        if not inside:
            return place, f"{size:,}"
        return place, f"{inside[0]:,}–{inside[-1]:,}" if inside[0] < inside[-1] else f"{size:,}"

    return _grouped(analysed, task, "tokens of the context", part)


def _grouped(
    analysed: Analysed, task: Task, by: str, key: Callable[[Scored], tuple[int, str]]
) -> Groups:
    """`key` gives the place of a sample's part, and its name if that is not the place."""
    parts: dict[str, dict[int, list[Scored]]] = {}
    names: dict[int, str] = {}
    for label, scored in analysed.scored.items():
        for row in scored[task]:
            place, name = key(row)
            names[place] = name or str(place)
            parts.setdefault(label, {}).setdefault(place, []).append(row)
    order = sorted(names)
    found = {
        label: [means(task, parts.get(label, {}).get(place, [])) for place in order]
        for label in analysed.scored
    }
    return Groups(task, by, [names[place] for place in order], found)


@dataclass(frozen=True)
class Case:
    """One sample of one model."""

    model: str
    task: Task
    score: float
    """The mean of what it is judged by, over what is defined for it."""
    row: Scored

    def as_json(self) -> dict[str, Any]:
        """Return a line of `worst.jsonl`."""
        return {
            "model": self.model,
            "task": self.task,
            "score": self.score,
            "id": self.row.id,
            "question": self.row.question,
            "step": self.row.step,
            "steps": self.row.steps,
            "context_tokens": self.row.context_tokens,
            "metrics": dict(self.row.metrics),
            "prompt_tail": self.row.prompt_tail,
            "expected": self.row.expected,
            "got": self.row.text,
        }


def worst(analysed: Analysed, count: int) -> list[Case]:
    """Return the `count` worst cases of each model in each task, the worst first."""
    found = []
    for label, scored in analysed.scored.items():
        for task, rows in scored.items():
            cases = [Case(label, task, score_of(task, row), row) for row in rows]
            found += sorted(cases, key=lambda case: (case.score, case.row.id))[:count]
    return found


def score_of(task: Task, row: Scored) -> float:
    """Return how good a reply is on the whole: the mean of `JUDGED_BY`, where defined."""
    values = [row.metrics.get(name) for name in JUDGED_BY[task]]
    known = [one for one in values if one is not None]
    return sum(known) / len(known)
