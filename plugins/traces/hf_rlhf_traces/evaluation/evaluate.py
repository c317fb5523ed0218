"""One evaluation: models on the same held-out samples, side by side."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.errors import ConfigError, ModelError, Problem
from hf_rlhf.storage import atomic_write_json, atomic_write_text
from hf_rlhf_traces.evaluation.claims import parse_claim, standing
from hf_rlhf_traces.evaluation.generating import Candidate, Replies, Sampling, generate_missing
from hf_rlhf_traces.evaluation.held_out import HeldOut, held_out
from hf_rlhf_traces.evaluation.intervals import ALL_EQUAL, METHOD
from hf_rlhf_traces.evaluation.metrics import METRICS, TASKS, Task
from hf_rlhf_traces.evaluation.recording import record_results
from hf_rlhf_traces.evaluation.results import (
    EXPECTED,
    FOLDER,
    RESULTS,
    Scored,
    as_json,
    differences,
    few_questions,
    judged,
    of_task,
)
from hf_rlhf_traces.evaluation.scoring import (
    SCORES,
    expected_replies,
    scored_replies,
    write_scores,
)
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.store import Store

TABLE = "results.md"
SCHEMA = 1


@dataclass(frozen=True)
class Options:
    """What is asked of an evaluation."""

    tasks: tuple[Task, ...] = ("prefix", "only")
    split: str = "validation"
    num_samples: int = 50
    seed: int = 42
    """Which samples are chosen; above temperature 0, what is drawn too."""
    allow_training_questions: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    claims: tuple[str, ...] = ()
    use_cpu: bool = False
    record: bool = False
    """Whether results go into the records and cards of the runs among the models."""


def evaluate(
    store: Store, models: Mapping[str, str], options: Options, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure models, under their labels, and write `eval/` in the store; return the results.

    What was generated before, by the same weights from the same data with the same settings, is
    not generated again.

    Raises RunFolderError where the datasets are not made, or another process evaluates there;
    ModelError for a model that cannot be used; DataError as `held_out` does; ConfigError for
    claims that cannot be judged. All before any weights load.
    """
    from hf_rlhf.storage import claimed

    data = _data(store, options)
    candidates = [_candidate(label, asked) for label, asked in models.items()]
    trained = {one.label: one.saved.training.get("plugin") for one in candidates}
    labels = list(trained)
    claims = [
        *standing(trained, options.tasks),
        *(parse_claim(text, labels, options.tasks) for text in options.claims),
    ]
    form = Format.of(store.settings("format"))
    for one in candidates:
        one.check(options.sampling, form)
    if options.record and not any(one.saved.run_folder for one in candidates):
        what = "none of the models is a run folder, so there is no record to add to."
        raise ConfigError([Problem("--record", what, "Name run folders, or leave it out.")])
    with claimed(store.folder / FOLDER, store.chosen_by):
        work = {
            (one.label, task): Replies(store.folder / FOLDER, one, data[task], options.sampling)
            for one in candidates
            for task in options.tasks
        }
        _check_room(work.values())
        _generate(candidates, work, options)
        scored: dict[str, dict[Task, list[Scored]]] = {label: {} for label in labels}
        for (label, task), replies in work.items():
            scored[label][task] = scored_replies(replies, form)
            write_scores(replies.folder / SCORES, scored[label][task])
        ideal = {task: expected_replies(work[labels[0], task], form) for task in options.tasks}
        results = {
            "schema": SCHEMA,
            **_made(command),
            "method": METHOD,
            "data": {task: _of_data(one, options) for task, one in data.items()},
            "sampling": options.sampling.settings(),
            "models": {one.label: _of_model(one, work, scored[one.label]) for one in candidates},
            EXPECTED: {task: of_task(task, rows) for task, rows in ideal.items()},
            "baseline": labels[0],
            "differences": _differences(scored),
            "claims": judged(claims, scored),
        }
        told = [*_notes(data, options, work, ideal), few_questions(scored)]
        told.append(_all_equal(results["models"]))
        results["notes"] = [one for one in told if one]
        _write(store, results)
    if options.record:
        record_results(results)
    return results


def _data(store: Store, options: Options) -> dict[Task, HeldOut]:
    return {
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


def _candidate(label: str, asked: str) -> Candidate:
    from hf_rlhf.evaluation import find_saved

    return Candidate(label, find_saved(asked))


def _check_room(work: Any) -> None:
    for one in work:
        if not one.prompts:
            raise ModelError(
                f"{one.candidate.saved.asked}: no prompt of {one.data.task} has room in its "
                f"{one.candidate.positions} positions with --max_new_tokens "
                f"{one.sampling.max_new_tokens}. Lower it, or use a model for longer texts."
            )


def _generate(
    candidates: Sequence[Candidate],
    work: Mapping[tuple[str, Task], Replies],
    options: Options,
) -> None:
    from accelerate import PartialState

    device = PartialState(cpu=options.use_cpu).device
    with _progress() as shown:
        for one in candidates:
            generate_missing([work[one.label, task] for task in options.tasks], device, shown)


@contextmanager
def _progress() -> Iterator[Callable[[Replies], Callable[[int], object]]]:
    """Show how many replies are there: a bar in a terminal, else a line for each batch."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn())
    left = TimeRemainingColumn()
    bars = Progress(*columns, left, console=console, disable=not console.is_terminal)

    def shown(replies: Replies) -> Callable[[int], object]:
        name, total = f"{replies.candidate.label}: {replies.data.task}", len(replies.prompts)
        there = total - len(replies.missing())
        bar = bars.add_task(name, total=total, completed=there)

        def made(count: int) -> None:
            nonlocal there
            there += count
            bars.advance(bar, count)
            if not console.is_terminal:
                print(f"{name}: {there} of {total} replies", file=sys.stderr, flush=True)

        return made

    with bars:
        yield shown


def _made(command: Sequence[str]) -> dict[str, Any]:
    from hf_rlhf.storage import now

    return {"made": now(), "command": list(command)}


def _of_data(data: HeldOut, options: Options) -> dict[str, Any]:
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


def _of_model(
    candidate: Candidate,
    work: Mapping[tuple[str, Task], Replies],
    scored: Mapping[Task, Sequence[Scored]],
) -> dict[str, Any]:
    tasks = {}
    for task, rows in scored.items():
        replies = work[candidate.label, task]
        tasks[task] = {
            "folder": replies.folder.name,
            "too_long": len(replies.too_long),
            **of_task(task, rows),
        }
    return {**candidate.saved.as_json(), "positions": candidate.positions, "tasks": tasks}


def _differences(scored: Mapping[str, Mapping[Task, Sequence[Scored]]]) -> dict[str, Any]:
    """Return each model minus the first one, sample by sample."""
    first, *others = scored
    return {
        label: {
            task: as_json(differences(task, rows, scored[first][task]))
            for task, rows in scored[label].items()
        }
        for label in others
    }


def _notes(
    data: Mapping[Task, HeldOut],
    options: Options,
    work: Mapping[tuple[str, Task], Replies],
    ideal: Mapping[Task, Sequence[Scored]],
) -> Iterator[str]:
    for task, one in data.items():
        if one.available < options.num_samples:
            yield (
                f"{TASKS[task]} has {one.available} held-out samples, so all of them are measured "
                f"(--num_samples {options.num_samples})."
            )
        if one.trained:
            yield (
                f"{len(one.trained)} of {len(one.samples)} samples of {task} are of questions in "
                "training: what was memorised counts here."
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
                f"{odd} of {len(rows)} expected replies of {task} are not of the form themselves "
                "(no search and no answer, or something behind it)."
            )


def _all_equal(models: Mapping[str, Any]) -> str:
    """Say how the interval of a metric is made that is 0, or 1, in all samples, if there is one."""
    found = (
        one["mean"]
        for model in models.values()
        for task in model["tasks"].values()
        for name, one in task["metrics"].items()
        if one and METRICS[name].bounded
    )
    return ALL_EQUAL if any(mean in (0, 1) for mean in found) else ""


def _write(store: Store, results: Mapping[str, Any]) -> None:
    from hf_rlhf_traces.evaluation.tables import markdown

    atomic_write_json(store.folder / FOLDER / RESULTS, results)
    atomic_write_text(store.folder / FOLDER / TABLE, markdown(results))
