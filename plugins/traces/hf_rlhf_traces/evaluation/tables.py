"""What `eval/results.json` says, as tables: in the terminal, as Markdown, and on cards."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf.cards import interval, markdown_table, number, terminal_table, verdict
from hf_rlhf_traces.evaluation.metrics import TASKS, TITLES, Task, metrics_of
from hf_rlhf_traces.evaluation.results import EXPECTED

Results = Mapping[str, Any]
Values = Mapping[str, Any] | None
Table = tuple[list[str], list[list[str]]]
"""Headings, and rows of text."""
VERDICT_METRICS = ("answer_exact", "query_f1")
"""What a verdict is of: whether the next step, an answer or a search, is that of the data."""


def cell(estimate: Values, *, signed: bool = False) -> str:
    """Return a mean with its interval, or why it has none; `-` where there is no value."""
    return interval(_of_questions(estimate), signed=signed) if estimate else "-"


def _of_questions(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Return an estimate whose `n` counts what was drawn: the questions."""
    return {**estimate, "n": estimate["questions"]}


def task_table(results: Results, task: Task) -> Table:
    """Return a row for each metric of a task, a column for each model.

    The last column has the replies of the training data, as if a model had given them.
    """
    columns = {label: model["tasks"][task]["metrics"] for label, model in results["models"].items()}
    ideal = results[EXPECTED][task]["metrics"]
    rows = []
    for metric in metrics_of(task):
        estimates = [column[metric.name] for column in columns.values()]
        expected = ideal[metric.name]
        if any(estimate is not None for estimate in (*estimates, expected)):
            last = number(expected["mean"]) if expected else "-"
            rows.append([metric.title, _counts(estimates), *map(cell, estimates), last])
    return ["metric", "n", *columns, "(data)"], rows


def _counts(estimates: Sequence[Values]) -> str:
    """Return the number of samples of a metric, or each model's where they differ."""
    counts = [str(estimate["n"]) if estimate else "0" for estimate in estimates]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts)


def difference_table(results: Results, task: Task) -> Table:
    """Return the paired differences from the first model, a column for each other one."""
    columns = {label: by_task[task] for label, by_task in results["differences"].items()}
    rows = []
    for metric in metrics_of(task):
        estimates = [column[metric.name] for column in columns.values()]
        if any(estimates):
            cells = [cell(estimate, signed=True) for estimate in estimates]
            rows.append([metric.title, _counts(estimates), *cells])
    return ["metric", "n", *(f"{label} − {results['baseline']}" for label in columns)], rows


def verdict_lines(results: Results, model: str, base: str) -> list[str]:
    """Return, for each task, whether a model is shown to be better than its base.

    It is where every metric of `VERDICT_METRICS` that any sample has rose. Tasks in which it is
    not shown to be better stand last, where they are read. Empty where `base` is not the baseline.
    """
    better_lines: list[str] = []
    others: list[str] = []
    if results["baseline"] != base:
        return []
    for task in results["data"]:
        differences = results["differences"].get(model, {}).get(task, {})
        metrics = [metric for metric in metrics_of(task) if metric.name in VERDICT_METRICS]
        metrics = [metric for metric in metrics if differences.get(metric.name)]
        if not metrics:
            continue
        lacking = [
            metric
            for metric in metrics
            if verdict(_of_questions(differences[metric.name])) != "rose"
        ]
        reasons = []
        for metric in lacking or metrics:
            mean, base_mean = (
                number(results["models"][label]["tasks"][task]["metrics"][metric.name]["mean"])
                for label in (model, base)
            )
            difference = cell(differences[metric.name], signed=True)
            reasons.append(
                f"{metric.title} {mean}, {base} {base_mean} (paired difference {difference}, "
                f"n={differences[metric.name]['n']})"
            )
        better = "NOT shown to be better" if lacking else "better"
        line = f"verdict, {TITLES[task]}: {model} is {better} than {base}: {'; '.join(reasons)}"
        (others if lacking else better_lines).append(line)
    return better_lines + others


def all_verdicts(results: Results) -> list[str]:
    """Return the verdict lines of every model against the baseline."""
    base = results["baseline"]
    return [line for model in results["models"] for line in verdict_lines(results, model, base)]


def markdown(results: Results) -> str:
    """Return all of the results as Markdown."""
    return "\n".join(_markdown(results))


def _markdown(results: Results) -> Iterator[str]:
    yield "# Evaluation\n"
    yield from (f"- {line}" for line in all_verdicts(results))
    for task, data in results["data"].items():
        yield f"\n## {TITLES[task]} (`{TASKS[task]}`)\n"
        yield (
            f"{data['samples']} of {data['rows']} rows of the split `{data['split']}`, of "
            f"{data['questions']} questions.\n"
        )
        yield markdown_table(*task_table(results, task))
        if results["differences"]:
            yield f"\nPaired differences from `{results['baseline']}`:\n"
            yield markdown_table(*difference_table(results, task))
    yield "\n## Notes\n"
    yield from (f"- {note}" for note in (results["method"], *results["notes"]))
    yield ""


def terminal(results: Results, width: int) -> Iterator[Any]:
    """Yield the tables for a terminal of `width` characters, as `rich` prints them."""
    narrow = width < 45 + 26 * len(results["models"])
    for task, data in results["data"].items():
        about = f"{data['samples']} samples of {data['questions']} questions, {data['split']}"
        tables = [(f"{TITLES[task]} ({about})", task_table(results, task))]
        if results["differences"]:
            tables.append(("paired differences", difference_table(results, task)))
        for title, (headings, rows) in tables:
            # An interval is not broken in the middle.
            lines = [
                [text.replace(" [", "\n[") if narrow else text for text in row] for row in rows
            ]
            yield terminal_table(headings, lines, title)
