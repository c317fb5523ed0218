"""What `eval/results.json` says, as tables: in the terminal and as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_rlhf_traces.evaluation.metrics import METRICS, SAID, TASKS, Metric, Task, metrics_of
from hf_rlhf_traces.evaluation.results import EXPECTED

Row = list[str]
KEY: Mapping[Task, Sequence[str]] = {
    "prefix": ("format_valid", "summary_rouge_l", "quotes_recall", "answer_f1", "query_f1"),
    "only": ("format_valid", "kind_right", "answer_f1", "query_f1"),
}
"""What is shown by step and by depth, where there is no room for all."""


def cell(found: Mapping[str, Any] | None, metric: Metric, *, signed: bool = False) -> str:
    """Return a mean with its interval; `-` where there is no value."""
    if found is None:
        return "-"
    mean = _mean(found, metric, signed=signed)
    if found["low"] is None:
        return mean
    shown = _format(metric, signed)
    return f"{mean} [{shown.format(found['low'])}, {shown.format(found['high'])}]"


def _mean(found: Mapping[str, Any] | None, metric: Metric, *, signed: bool = False) -> str:
    return "-" if found is None else _format(metric, signed).format(found["mean"])


def _format(metric: Metric, signed: bool) -> str:
    places = 3 if metric.bounded or metric.name == "compression" else 1
    return f"{{:{'+' if signed else ''}.{places}f}}"


def task_table(results: Mapping[str, Any], task: Task) -> tuple[Row, list[Row]]:
    """Return headings and rows of a task: a row for each metric, a column for each model.

    The last column has the replies of the training data, as if a model had given them.
    """
    columns = {label: model["tasks"][task]["metrics"] for label, model in results["models"].items()}
    ideal = results[EXPECTED][task]["metrics"]
    rows = []
    for metric in metrics_of(task):
        found = [one[metric.name] for one in columns.values()]
        if any(one is not None for one in (*found, ideal[metric.name])):
            cells = [cell(one, metric) for one in found]
            rows.append([metric.title, _counts(found), *cells, _mean(ideal[metric.name], metric)])
    return ["metric", "n", *columns, "(data)"], rows


def _counts(found: Sequence[Mapping[str, Any] | None]) -> str:
    """The number of samples of a metric, or of each model's where they differ."""
    counts = [str(one["n"]) if one else "0" for one in found]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts)


def difference_table(results: Mapping[str, Any], task: Task) -> tuple[Row, list[Row]]:
    """Return headings and rows of the paired differences from the first model."""
    found = {label: by_task[task] for label, by_task in results["differences"].items()}
    rows = []
    for metric in metrics_of(task):
        cells = [cell(one[metric.name], metric, signed=True) for one in found.values()]
        if any(one != "-" for one in cells):
            counts = _counts([one[metric.name] for one in found.values()])
            rows.append([metric.title, counts, *cells])
    return ["metric", "n", *(f"{label} − {results['baseline']}" for label in found)], rows


def group_table(results: Mapping[str, Any], task: Task, by: str) -> tuple[Row, list[Row]]:
    """Return headings and rows of the key metrics by `by_step` or `by_depth`, of each model."""
    shown = [METRICS[name] for name in KEY[task]]
    rows = []
    for label, model in results["models"].items():
        for value, found in model["tasks"][task][by].items():
            count = found["format_valid"]["n"] if found["format_valid"] else 0
            rows.append(
                [label, value, str(count), *(_with_n(found[one.name], one) for one in shown)]
            )
    heading = "step" if by == "by_step" else "steps of the trace"
    return ["model", heading, "n", *(one.title for one in shown)], rows


def _with_n(found: Mapping[str, Any] | None, metric: Metric) -> str:
    return "-" if found is None else f"{cell(found, metric)} (n={found['n']})"


def claim_lines(results: Mapping[str, Any]) -> list[str]:
    """Return each claim with its verdict and the number that decides it."""
    return [f"{one['verdict']}: {one['claim']}: {_decided(one)}" for one in results["claims"]]


def verdict_lines(results: Mapping[str, Any], model: str, base: str) -> list[str]:
    """Return, for each task, whether the claims that a model is better than its base are shown.

    What is not shown stands last, where it is read.
    """
    shown: list[str] = []
    others: list[str] = []
    for task in results["data"]:
        claims = [
            one
            for one in results["claims"]
            if one["task"] == task and one["models"] == [model, base] and one["estimate"]
        ]
        if not claims:
            continue
        open_ = [one for one in claims if one["verdict"] != "shown"]
        said = "NOT shown to be better" if open_ else "better"
        why = "; ".join(_beside(results, one) for one in open_ or claims)
        line = f"verdict, {SAID[task]}: {model} is {said} than {base}: {why}"
        (others if open_ else shown).append(line)
    return shown + others


def _beside(results: Mapping[str, Any], claim: Mapping[str, Any]) -> str:
    """Return what a claim is of, with the means of both models and their difference."""
    metric, labels = METRICS[claim["metric"]], claim["models"]
    means = (results["models"][one]["tasks"][claim["task"]]["metrics"] for one in labels)
    model, base = (f"{one[metric.name]['mean']:.3f}" for one in means)
    return f"{metric.title} {model}, {labels[1]} {base} ({_decided(claim)})"


def _decided(claim: Mapping[str, Any]) -> str:
    found, metric = claim["estimate"], METRICS[claim["metric"]]
    if found is None:
        return "no sample has both numbers"
    paired = len(claim["models"]) == 2
    what = "paired difference" if paired else metric.title
    return f"{what} {cell(found, metric, signed=paired)}, n={found['n']}"


def markdown(results: Mapping[str, Any]) -> str:
    """Return the whole of the results as Markdown."""
    return "\n".join(_markdown(results))


def _markdown(results: Mapping[str, Any]) -> Iterator[str]:
    yield "# Evaluation\n"
    for task, data in results["data"].items():
        yield f"## {SAID[task]} (`{TASKS[task]}`)\n"
        yield (
            f"{data['samples']} of {data['rows']} rows of the split `{data['split']}`, of "
            f"{data['questions']} questions.\n"
        )
        yield from lines_of(task_table(results, task))
        if results["differences"]:
            yield f"Paired differences from `{results['baseline']}`:\n"
            yield from lines_of(difference_table(results, task))
        yield "By step (groups of results seen before the reply):\n"
        yield from lines_of(group_table(results, task, "by_step"))
        yield "By depth (groups of results of the whole trace):\n"
        yield from lines_of(group_table(results, task, "by_depth"))
    if results["claims"]:
        yield "## Claims\n"
        for line in claim_lines(results):
            verdict, _, said = line.partition(": ")
            yield f"- **{verdict}**: {said}"
        yield ""
    yield "## Notes\n"
    yield from (f"- {note}" for note in (results["method"], *results["notes"]))
    yield ""


def lines_of(table: tuple[Row, list[Row]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    headings, rows = table
    for row in (headings, ["---"] * len(headings), *rows):
        yield "| " + " | ".join(one.replace("|", "\\|") for one in row) + " |"
    yield ""


def terminal(results: Mapping[str, Any], width: int) -> Iterator[Any]:
    """Yield the tables for a terminal of so many characters across, as `rich` has them."""
    from rich.table import Table

    narrow = width < 45 + 26 * len(results["models"])
    for task, data in results["data"].items():
        about = f"{data['samples']} samples of {data['questions']} questions, {data['split']}"
        tables = [(f"{SAID[task]} ({about})", task_table(results, task))]
        if results["differences"]:
            tables.append(("paired differences", difference_table(results, task)))
        for title, (headings, rows) in tables:
            table = Table(title=title, title_justify="left")
            for place, heading in enumerate(headings):
                table.add_column(heading, justify="left" if place == 0 else "right")
            for row in rows:
                # An interval is not broken in the middle.
                table.add_row(*(one.replace(" [", "\n[") if narrow else one for one in row))
            yield table
