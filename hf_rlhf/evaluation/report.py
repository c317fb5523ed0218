"""Report a suite's results from JSON: tables, verdicts, Markdown, and cards of runs."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_rlhf.cards.folders import record_comparison
from hf_rlhf.formatting import (
    code,
    fence,
    interval,
    listed,
    markdown_table,
    number,
    print_table,
    terminal_message,
    verdict,
)
from hf_rlhf.storage.lock import locked_folder

PICTURE = "results.png"
Results = Mapping[str, Any]
"""The content of `results.json`."""
Table = tuple[list[str], list[list[str]]]
"""Headings, and rows of text."""
_RECORDED = ("made", "command", "baseline", "sampling", "method")
_BETTER = {"lower": "fell"}
_WIDTH = 120
"""Width of a table without a terminal."""


@dataclass(frozen=True)
class Metric:
    """A number of each completion."""

    name: str
    title: str
    """Title with unit, for tables and plots."""
    better: Literal["higher", "lower"] | None = "higher"
    """None: neither direction is better."""
    bounded: bool = True
    """Whether it ranges from 0 to 1, and so is plotted."""


def _cell(estimate: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """Return a mean with its interval, or why there is none; `-` without a value."""
    return interval(estimate, signed=signed) if estimate else "-"


def result_table(task: Mapping[str, Any]) -> Table:
    """Return a row for each metric of a task that has a value, a column for each model.

    The last column has the data's own responses, if the task scores them.
    """
    data, entries = task["data_means"], task["results"]
    rows = []
    for metric in task["metrics"]:
        means = [entry["means"].get(metric["name"]) for entry in entries.values()]
        in_data = (data or {}).get(metric["name"])
        if any((*means, in_data)):
            # Beside models it is a reference, alone a result.
            last = number(in_data["mean"]) if means and in_data else _cell(in_data)
            cells = [*map(_cell, means), *([] if data is None else [last])]
            rows.append([metric["title"], _counts(means or [in_data]), *cells])
    titles = [title for entry in entries.values() for title in entry.get("lines", ())]
    for title in dict.fromkeys(titles):
        texts = [entry.get("lines", {}).get(title, "-") for entry in entries.values()]
        rows.append([title, "", *texts, *([] if data is None else ["-"])])
    names = [
        name if entry["seeds"] == 1 else f"{name} ({entry['seeds']} seeds)"
        for name, entry in entries.items()
    ]
    return ["metric", "n", *names, *([] if data is None else ["(data)"])], rows


def difference_table(task: Mapping[str, Any], baseline: str) -> Table | None:
    """Return the paired differences from the baseline; None without a comparison."""
    compared = {name: each for name, each in task["results"].items() if each["difference"]}
    rows = []
    for metric in task["metrics"]:
        differences = [entry["difference"].get(metric["name"]) for entry in compared.values()]
        if any(differences):
            cells = [_cell(difference, signed=True) for difference in differences]
            rows.append([metric["title"], _counts(differences), *cells])
    headings = ["metric", "n", *(f"{name} − {baseline}" for name in compared)]
    return (headings, rows) if compared else None


def _counts(estimates: Sequence[Mapping[str, Any] | None]) -> str:
    """Return the number of values of a metric, per model if they differ."""
    counts = [str(estimate["values"]) for estimate in estimates if estimate]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts) or "0"


def verdicts(results: Results) -> list[str]:
    """Return for each model and task whether it is better, WORSE, or NOT shown to be better.

    A model is better in a task if every metric of the verdict with a value improved; the line names
    metrics that got worse. Tasks in which it is not better come last.
    """
    lines = []
    for name in results["models"]:
        of_model = [_verdict(results, task, name) for task in results["tasks"].values()]
        lines += sorted(filter(None, of_model), key=lambda line: " is better than " not in line)
    return lines


def _verdict(results: Results, task: Mapping[str, Any], name: str) -> str:
    differences = task["results"][name]["difference"] or {}
    metrics = [each for each in task["metrics"] if each["name"] in task["verdict"]]
    metrics = [each for each in metrics if each["name"] in differences]
    if not metrics:
        return ""
    base = results["baseline"]
    changes = {metric["name"]: verdict(differences[metric["name"]]) for metric in metrics}
    improved = [m for m in metrics if changes[m["name"]] == _BETTER.get(m["better"], "rose")]
    unclear = [m for m in metrics if changes[m["name"]] not in ("rose", "fell")]
    fallen = [m for m in metrics if m not in (*improved, *unclear)]
    if fallen:
        but = f"better in {listed([m['title'] for m in improved])}, but " if improved else ""
        better = f"{but}WORSE than"
    else:
        better = "NOT shown to be better than" if unclear else "better than"
    reasons = []
    for metric in fallen or unclear or improved:
        mean, base_mean = (
            number(task["results"][each]["means"][metric["name"]]["mean"]) for each in (name, base)
        )
        difference = differences[metric["name"]]
        reasons.append(
            f"{metric['title']} {mean}, {base} {base_mean} (paired difference "
            f"{_cell(difference, signed=True)}, n={difference['values']})"
        )
    return f"verdict, {task['title']}: {name} is {better} {base}: {'; '.join(reasons)}"


def all_notes(results: Results) -> list[str]:
    """Return notes for readers of the tables."""
    return [f"In brackets: {results['method']}.", *results["notes"]]


def markdown(results: Results, folder: Path, appendix: str) -> str:
    """Return `results.md`, for the folder with the plot."""
    lines = ["# Evaluation\n", *(f"- {line}" for line in results["verdicts"])]
    for name, task in results["tasks"].items():
        lines += [f"\n## {task['title'].capitalize()} (`{name}`)\n"]
        lines += [f"{task['data']['about']}\n", markdown_table(*result_table(task))]
        if differences := difference_table(task, results["baseline"]):
            lines += [f"\nPaired differences from `{results['baseline']}`:\n"]
            lines += [markdown_table(*differences)]
    lines += ["\n## Notes\n", *(f"- {note}" for note in all_notes(results)), ""]
    if (folder / PICTURE).exists():
        lines += [f"![The means of each model, with intervals]({PICTURE})\n"]
    lines += ["## Models\n", *_models(results), "", appendix, "## Command\n"]
    return "\n".join([*lines, fence(shlex.join(results["command"]), "sh"), ""])


def _models(results: Results) -> Iterator[str]:
    for models in results["models"].values():
        for model in models:
            training = model["training"]
            run = f", run {training['run_id']} of {training['plugin']}" if training else ""
            yield f"- {code(model['label'])}: {code(model['source'])}{run}"


def print_results(results: Results) -> None:
    """Print tables, notes and verdicts."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for task in results["tasks"].values():
        tables = [(f"{task['title']}: {task['data']['about']}", result_table(task))]
        if differences := difference_table(task, results["baseline"]):
            tables.append(("paired differences", differences))
        for title, table in tables:
            print_table(console, *table, title, fixed=2)
    for note in all_notes(results):
        print(terminal_message(f"- {note}", sys.stdout))
    for line in results["verdicts"]:
        print(terminal_message(line, sys.stdout))


def record_results(results: Results, folder: Path) -> None:
    """Write the tables into `run.json` and onto the card of each run among the models.

    An earlier comparison is replaced. Raises RunFolderError for a run that is in use.
    """
    several = len(results["tasks"]) > 1
    table = [
        {**({"task": task["title"]} if several else {}), **dict(zip(headings, row, strict=True))}
        for task in results["tasks"].values()
        for headings, rows in [result_table(task)]
        for row in rows
    ]
    comparison = {
        "table": table,
        "notes": [*results["verdicts"], *all_notes(results)],
        **{key: results[key] for key in _RECORDED},
        "tasks": {
            name: {key: task[key] for key in ("data", "results")}
            for name, task in results["tasks"].items()
        },
    }
    picture = folder / PICTURE
    alt = "The means of each model, with intervals"
    for name, models in results["models"].items():
        for run in (Path(model["run_folder"]) for model in models if model["run_folder"]):
            with locked_folder(run, "--model"):
                record_comparison(
                    run, {"name": name, **comparison}, (picture, alt) if picture.exists() else None
                )
