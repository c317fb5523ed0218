"""One evaluation: models on the same held-out samples, side by side."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_rlhf.cards import record_comparison
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.evaluation import find_saved
from hf_rlhf.storage import atomic_write_json, atomic_write_text, locked_folder, now
from hf_rlhf_traces.evaluation.candidates import Candidate, Replies, Sampling, generate_missing
from hf_rlhf_traces.evaluation.held_out import HeldOut, held_out
from hf_rlhf_traces.evaluation.metrics import TASKS, TITLES, Task
from hf_rlhf_traces.evaluation.results import (
    EXPECTED,
    FOLDER,
    METHOD,
    RESULTS,
    differences,
    few_questions,
    task_results,
)
from hf_rlhf_traces.evaluation.scoring import (
    SCORES,
    Scored,
    expected_replies,
    scored_replies,
    write_scores,
)
from hf_rlhf_traces.evaluation.tables import all_verdicts, markdown, task_table
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.store import Store

TABLE = "results.md"
SCHEMA = 2
_RECORDED = ("made", "command", "baseline", "data", "sampling", "method", "differences")
Work = Mapping[tuple[str, Task], Replies]
"""Label and task -> the replies."""
Rows = dict[str, dict[Task, list[Scored]]]
"""Label -> task -> the scored replies."""


@dataclass(frozen=True)
class Options:
    """The settings of an evaluation."""

    tasks: tuple[Task, ...] = ("prefix", "only")
    split: str = "validation"
    num_samples: int = 50
    seed: int = 42
    """Of which samples are chosen; above temperature 0, of what is drawn too."""
    allow_training_questions: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    use_cpu: bool = False
    record: bool = False
    """Whether results go into the records and cards of the runs among the models."""


def evaluate(
    store: Store, models: Mapping[str, str], options: Options, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure models, under their labels, and write `eval/` in the store; return the results.

    Replies that the same weights gave before, to the same data with the same settings, are not
    generated again.

    Raises RunFolderError where the datasets do not exist, or another process evaluates there;
    ModelError for a model that cannot be used; DataError as `held_out` does. All before any
    weights load.
    """
    data = {
        task: held_out(
            store,
            task,
            split=options.split,
            count=options.num_samples,
            seed=options.seed,
            allow_training=options.allow_training_questions,
        )
        for task in options.tasks
    }
    candidates = [Candidate(label, find_saved(source)) for label, source in models.items()]
    form = Format.of(store.settings("format"))
    for candidate in candidates:
        candidate.check(options.sampling, form)
    if options.record and not any(candidate.saved.run_folder for candidate in candidates):
        what = "none of the models is a run folder, so there is no record to add to."
        raise ConfigError([Problem("--record", what, "Name run folders, or leave it out.")])
    with locked_folder(store.folder / FOLDER, store.folder_option):
        work = {
            (candidate.label, task): Replies(
                store.folder / FOLDER, candidate, data[task], options.sampling
            )
            for candidate in candidates
            for task in options.tasks
        }
        _generate(candidates, work, options)
        results = _results(store, candidates, work, options, command)
    if options.record:
        record_results(results)
    return results


def _results(
    store: Store,
    candidates: Sequence[Candidate],
    work: Work,
    options: Options,
    command: Sequence[str],
) -> dict[str, Any]:
    """Score all replies, and write everything."""
    form = Format.of(store.settings("format"))
    scored: Rows = {candidate.label: {} for candidate in candidates}
    for (label, task), replies in work.items():
        scored[label][task] = scored_replies(replies, form)
        write_scores(replies.folder / SCORES, scored[label][task])
    baseline = candidates[0].label
    ideal = {task: expected_replies(work[baseline, task], form) for task in options.tasks}
    results = {
        "schema": SCHEMA,
        "made": now(),
        "command": list(command),
        "method": METHOD,
        "data": {task: _data(work[baseline, task].data, options) for task in options.tasks},
        "sampling": options.sampling.settings(),
        "models": {
            candidate.label: _model(candidate, work, scored[candidate.label])
            for candidate in candidates
        },
        EXPECTED: {task: task_results(task, rows) for task, rows in ideal.items()},
        "baseline": baseline,
        "differences": {
            label: {
                task: differences(task, rows, scored[baseline][task])
                for task, rows in by_task.items()
            }
            for label, by_task in scored.items()
            if label != baseline
        },
        "notes": [*_notes(options, work, ideal), *few_questions(scored)],
    }
    atomic_write_json(store.folder / FOLDER / RESULTS, results)
    atomic_write_text(store.folder / FOLDER / TABLE, markdown(results))
    return results


def record_results(results: Mapping[str, Any]) -> None:
    """Write the tables into `run.json` and the card of each run among the models.

    Raises RunFolderError for one that is in use.
    """
    table = [
        {"task": TITLES[task], **dict(zip(headings, row, strict=True))}
        for task in results["data"]
        for headings, rows in [task_table(results, task)]
        for row in rows
    ]
    for label, model in results["models"].items():
        if not model["run_folder"]:
            continue
        comparison = {
            "name": label,
            "table": table,
            "notes": [
                *all_verdicts(results),
                results["method"],
                *results["notes"],
                "The column (data) has the replies of the training data.",
            ],
            **{key: results[key] for key in _RECORDED},
        }
        with locked_folder(Path(model["run_folder"]), "--model"):
            record_comparison(Path(model["run_folder"]), comparison)


def _generate(candidates: Sequence[Candidate], work: Work, options: Options) -> None:
    from accelerate import PartialState

    device = PartialState(cpu=options.use_cpu).device
    with _progress() as progress:
        for candidate in candidates:
            generate_missing(
                [work[candidate.label, task] for task in options.tasks], device, progress
            )


@contextmanager
def _progress() -> Iterator[Callable[[Replies], Callable[[int], object]]]:
    """Show how many replies are generated: a bar in a terminal, else a line for each batch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    left = TimeRemainingColumn()
    bars = Progress(*columns, left, console=console, disable=not console.is_terminal)

    def bar_of(replies: Replies) -> Callable[[int], object]:
        name, total = f"{replies.candidate.label}: {replies.data.task}", len(replies.prompts)
        complete = total - len(replies.completions.missing())
        bar = bars.add_task(name, total=total, completed=complete)

        def advance(count: int) -> None:
            nonlocal complete
            complete += count
            bars.advance(bar, count)
            if not console.is_terminal:
                print(f"{name}: {complete} of {total} replies", file=sys.stderr, flush=True)

        return advance

    with bars:
        yield bar_of


def _data(data: HeldOut, options: Options) -> dict[str, Any]:
    return {
        "dataset": TASKS[data.task],
        "split": data.split,
        "sha256": data.digest,
        "rows": data.available,
        "samples": len(data.samples),
        "questions": data.questions,
        "of_questions_in_training": len(data.trained),
        "seed": options.seed,
    }


def _model(
    candidate: Candidate, work: Work, scored: Mapping[Task, Sequence[Scored]]
) -> dict[str, Any]:
    tasks = {}
    for task, rows in scored.items():
        replies = work[candidate.label, task]
        tasks[task] = {
            "folder": replies.folder.name,
            "too_long": len(replies.too_long),
            **task_results(task, rows),
        }
    return {**candidate.saved.as_json(), "positions": candidate.positions, "tasks": tasks}


def _notes(options: Options, work: Work, ideal: Mapping[Task, Sequence[Scored]]) -> Iterator[str]:
    for data in {task: replies.data for (_, task), replies in work.items()}.values():
        if data.available < options.num_samples:
            yield (
                f"{TASKS[data.task]} has {data.available} held-out samples, so all of them are "
                f"measured (--num_samples {options.num_samples})."
            )
        if data.trained:
            yield (
                f"{len(data.trained)} of {len(data.samples)} samples of {data.task} are of "
                "questions in training: what was memorised counts here."
            )
    for (label, task), replies in work.items():
        if replies.too_long:
            yield (
                f"{label}: {len(replies.too_long)} of {len(replies.data.samples)} samples of "
                f"{task} left out: prompt and {options.sampling.max_new_tokens} new tokens are "
                f"over its {replies.candidate.positions} positions."
            )
    for task, rows in ideal.items():
        odd = sum(not row.metrics["format_valid"] for row in rows)
        if odd:
            yield (
                f"{odd} of {len(rows)} expected replies of {task} do not have the required form "
                "themselves (no search and no answer, or text behind it)."
            )
