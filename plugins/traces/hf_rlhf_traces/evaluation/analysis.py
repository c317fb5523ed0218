"""Where models do well and badly: by depth of the trace, and case by case: `analysis/`."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.cards import COLOURS, INK, calm, excerpt, fence, markdown_table
from hf_rlhf.errors import RunFolderError
from hf_rlhf.storage import atomic_write_bytes, atomic_write_text
from hf_rlhf_traces.evaluation.metrics import METRICS, TASKS, TITLES, Task, metrics_of
from hf_rlhf_traces.evaluation.results import FOLDER as EVAL
from hf_rlhf_traces.evaluation.results import RESULTS, grouped
from hf_rlhf_traces.evaluation.scoring import SCORES, Scored
from hf_rlhf_traces.evaluation.tables import Table, all_verdicts, cell
from hf_rlhf_traces.shards import split_digest
from hf_rlhf_traces.store import Store

REPORT, WORST, PLOT = "report.md", "worst.jsonl", "overview.png"
_EXCERPT = 1200
SCORE_METRICS: Mapping[Task, Sequence[str]] = {
    "prefix": (
        *("format_valid", "kind_right", "summary_rouge_l", "quotes_recall"),
        *("answer_f1", "query_f1"),
    ),
    "only": ("format_valid", "kind_right", "answer_f1", "query_f1"),
}
"""What a case is scored by, and a table by depth has: all from 0 to 1, higher is better."""


@dataclass(frozen=True)
class Analysis:
    """The scores of an evaluation: label -> task -> its samples."""

    results: Mapping[str, Any]
    scored: Mapping[str, Mapping[Task, Sequence[Scored]]]

    @property
    def tasks(self) -> list[Task]:
        """The tasks that were measured."""
        return [task for task in TASKS if task in self.results["data"]]


def load(store: Store, labels: Sequence[str] = ()) -> Analysis:
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
    if unknown := [label for label in labels if label not in known]:
        raise RunFolderError(
            f"--model {unknown[0]}: {folder / RESULTS} has no such label. It has: "
            f"{', '.join(known)}. `eval` takes several models at once."
        )
    scored = {
        label: {
            task: _read(folder / entry["folder"] / SCORES, again)
            for task, entry in results["models"][label]["tasks"].items()
        }
        for label in (labels or known)
    }
    return Analysis(results, scored)


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


def depth_table(analysis: Analysis, task: Task) -> Table:
    """Return a row for each metric and model, a column for each depth of the whole trace."""
    by_depth = {
        label: grouped(task, scored[task], lambda row: row.steps)
        for label, scored in analysis.scored.items()
    }
    depths = sorted({depth for groups in by_depth.values() for depth in groups}, key=int)
    rows = []
    for name in SCORE_METRICS[task]:
        for label, groups in by_depth.items():
            estimates = [groups.get(depth, {}).get(name) for depth in depths]
            cells = [f"{cell(entry)}, n={entry['n']}" if entry else "-" for entry in estimates]
            rows.append([METRICS[name].title, label, *cells])
    return ["metric", "model", *depths], rows


def worst_cases(analysis: Analysis, count: int) -> list[dict[str, Any]]:
    """Return the lines of `worst.jsonl`: the `count` worst samples of each model in each task."""
    worst = []
    for label, scored in analysis.scored.items():
        for task, rows in scored.items():
            ranked = sorted(rows, key=lambda row: (score_of(task, row), row.id))
            worst += [_case(label, task, row) for row in ranked[:count]]
    return worst


def _case(label: str, task: Task, row: Scored) -> dict[str, Any]:
    names = ("id", "question", "step", "steps", "context_tokens", "metrics", "prompt_tail")
    return {
        "model": label,
        "task": task,
        "score": score_of(task, row),
        **{name: getattr(row, name) for name in names},
        "expected": row.expected,
        "got": row.text,
    }


def score_of(task: Task, row: Scored) -> float:
    """Return how good a reply is on the whole: the mean of `SCORE_METRICS`, where defined."""
    values = [row.metrics.get(name) for name in SCORE_METRICS[task]]
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def write_analysis(analysis: Analysis, folder: Path, *, worst_count: int = 5) -> list[Path]:
    """Write the report, its plot and the worst cases; return the paths."""
    cases = worst_cases(analysis, worst_count)
    plot(analysis, folder / PLOT)
    atomic_write_text(folder / REPORT, "\n".join(_report(analysis, cases)))
    lines = [json.dumps(case, ensure_ascii=False) + "\n" for case in cases]
    atomic_write_text(folder / WORST, "".join(lines))
    return [folder / name for name in (REPORT, WORST, PLOT)]


def _report(analysis: Analysis, cases: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# Analysis\n"
    for label in analysis.scored:
        yield f"- `{label}`: {analysis.results['models'][label]['asked']}"
    yield from (f"- {line}" for line in all_verdicts(analysis.results))
    yield f"\nIntervals: {analysis.results['method']}.\n"
    yield f"![Means of all metrics, by model]({PLOT})\n"
    for task in analysis.tasks:
        yield f"## {TITLES[task].capitalize()}\n\n### By results in the whole trace\n"
        yield markdown_table(*depth_table(analysis, task))
        names = ", ".join(METRICS[name].title for name in SCORE_METRICS[task])
        yield "\n### Worst cases\n"
        yield f"By the mean of what is defined of: {names}. All of them in `{WORST}`.\n"
        for case in cases:
            if case["task"] == task:
                yield from _case_lines(case)


def _case_lines(case: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"#### `{case['model']}`: {case['score']:.2f}, sample `{case['id']}` (step {case['step']} "
        f"of {case['steps']}, context {case['context_tokens']:,} tokens)\n"
    )
    known = {name: value for name, value in case["metrics"].items() if value is not None}
    yield "; ".join(f"{METRICS[name].title} {value:.2f}" for name, value in known.items()) + "\n"
    for title, text in (
        ("End of the prompt", case["prompt_tail"][-_EXCERPT:]),
        ("Expected", case["expected"]),
        ("Got", case["got"]),
    ):
        yield f"{title}:\n\n{fence(excerpt(text, _EXCERPT) or '(nothing)')}\n"


def plot(analysis: Analysis, path: Path) -> None:
    """Draw the mean of each metric from 0 to 1, a panel for each task, a colour for each model."""
    # Not pyplot: its global state and its backend belong to the caller.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 1.5 + 0.45 * sum(metric.bounded for metric in METRICS.values())
    figure = Figure(figsize=(5.6 * len(analysis.tasks), height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(analysis.tasks), squeeze=False)[0]
    for axes, task in zip(panels, analysis.tasks, strict=True):
        _panel(axes, analysis, task)
    if len(analysis.scored) > 1:
        handles, labels = panels[0].get_legend_handles_labels()
        columns = min(len(labels), 5)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    image = io.BytesIO()
    # Without a version or a date, the same scores give the same bytes.
    figure.savefig(image, format="png", metadata={"Software": None})
    atomic_write_bytes(path, image.getvalue())


def _panel(axes: Any, analysis: Analysis, task: Task) -> None:
    models, metrics = (
        list(analysis.scored),
        [metric for metric in metrics_of(task) if metric.bounded],
    )
    for index, label in enumerate(models):
        means = analysis.results["models"][label]["tasks"][task]["metrics"]
        shift = 0.36 * (index / max(1, len(models) - 1) - 0.5) if len(models) > 1 else 0.0
        points = [(at + shift, means[metric.name]) for at, metric in enumerate(metrics)]
        points = [(at, mean) for at, mean in points if mean]
        # Rounding may put a mean outside its interval by a hair.
        bars = [
            [max(0.0, mean["mean"] - mean["low"]) for _, mean in points],
            [max(0.0, mean["high"] - mean["mean"]) for _, mean in points],
        ]
        axes.errorbar(
            [mean["mean"] for _, mean in points],
            [at for at, _ in points],
            xerr=bars,
            fmt="o",
            color=COLOURS[index % len(COLOURS)],
            label=label,
            capsize=2.5,
            ms=5,
        )
    titles = [
        metric.title + (" (lower is better)" if metric.better == "lower" else "")
        for metric in metrics
    ]
    axes.set_yticks(range(len(metrics)), titles)
    axes.set_ylim(len(metrics) - 0.5, -0.5)
    axes.set_xlim(-0.03, 1.03)
    questions = analysis.results["data"][task]["questions"]
    axes.set_xlabel(f"mean, {questions} questions (bars: 95%)", fontsize=9)
    axes.set_title(TITLES[task].capitalize(), loc="left", color=INK, fontsize=10)
    calm(axes)
    axes.grid(axis="x", color="#e6e6e6", lw=0.8)
    axes.grid(axis="y", visible=False)
