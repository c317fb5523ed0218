"""`analysis/`: the report, its pictures and the worst cases."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hf_rlhf.storage import atomic_write_text
from hf_rlhf_traces.evaluation import figures
from hf_rlhf_traces.evaluation.analysis import (
    JUDGED_BY,
    Analysed,
    Case,
    Groups,
    by_depth,
    by_length,
    by_step,
    worst,
)
from hf_rlhf_traces.evaluation.intervals import Estimate
from hf_rlhf_traces.evaluation.metrics import METRICS, SAID, Metric, Task
from hf_rlhf_traces.evaluation.tables import Row, cell, claim_lines, lines_of

REPORT = "report.md"
WORST = "worst.jsonl"
_SHOWN_CHARACTERS = 1200


def write_analysis(
    analysed: Analysed, folder: Path, *, worst_count: int = 5, bins: int = 4
) -> list[Path]:
    """Write the report, its pictures and the worst cases; return what was written."""
    cases = worst(analysed, worst_count)
    written = [folder / REPORT, folder / WORST]
    lines = ["# Analysis\n", *_heading(analysed)]
    if analysed.tasks:
        figures.overview(analysed, folder / "overview.png")
        written.append(folder / "overview.png")
        lines.append("![Means of all metrics, by model](overview.png)\n")
    for task in analysed.tasks:
        lines.append(f"## {SAID[task].capitalize()}\n")
        parted = {
            "depth": by_depth(analysed, task),
            "step": by_step(analysed, task),
            "length": by_length(analysed, task, bins),
        }
        for name, found in parted.items():
            path = folder / f"{task}_by_{name}.png"
            lines.append(f"### By {found.by}\n")
            if figures.groups(found, path):
                written.append(path)
                lines.append(f"![{SAID[task].capitalize()}, by {found.by}]({path.name})\n")
            else:
                path.unlink(missing_ok=True)
            lines += lines_of(group_table(found))
        lines += _worst(task, [case for case in cases if case.task == task])
    atomic_write_text(folder / REPORT, "\n".join(lines))
    told = "".join(json.dumps(case.as_json(), ensure_ascii=False) + "\n" for case in cases)
    atomic_write_text(folder / WORST, told)
    return written


def _heading(analysed: Analysed) -> Iterator[str]:
    for label in analysed.scored:
        yield f"- `{label}`: {analysed.results['models'][label]['asked']}"
    yield ""
    for line in claim_lines(analysed.results):
        verdict, _, said = line.partition(": ")
        yield f"- **{verdict}**: {said}"
    yield ""
    yield f"Intervals: {analysed.results['method']}.\n"


def group_table(found: Groups) -> tuple[Row, list[Row]]:
    """Return headings and rows: a row for each model and group."""
    shown = [METRICS[name] for name in JUDGED_BY[found.task]]
    rows = []
    for label, parts in found.means.items():
        for name, part in zip(found.names, parts, strict=True):
            cells = [_counted(part[one.name], one) for one in shown]
            rows.append([label, name, *cells])
    return ["model", found.by, *(one.title for one in shown)], rows


def depth_rows(found: Groups) -> Iterator[tuple[Row, bool]]:
    """Yield rows for a terminal, a metric's models one below the other; and where a metric ends."""
    labels = list(found.means)
    for name in JUDGED_BY[found.task]:
        for label in labels:
            means = [part[name] for part in found.means[label]]
            first = METRICS[name].title if label == labels[0] else ""
            yield [first, label, *map(_brief, means)], label == labels[-1]


def _brief(found: Estimate | None) -> str:
    if found is None:
        return "-"
    said = f"{found.mean:.2f} (n={found.n})"
    if found.low is None or found.high is None:
        return said
    return f"{said}\n[{found.low:.2f}, {found.high:.2f}]"


def _counted(found: Estimate | None, metric: Metric) -> str:
    if found is None:
        return "-"
    return f"{cell(found.as_json(), metric)} (n={found.n})"


def _worst(task: Task, cases: Sequence[Case]) -> Iterator[str]:
    yield "### Worst cases\n"
    names = ", ".join(METRICS[name].title for name in JUDGED_BY[task])
    yield f"By the mean of what is defined of: {names}. All of them in `{WORST}`.\n"
    for case in cases:
        row = case.row
        yield (
            f"#### `{case.model}`: {case.score:.2f}, sample `{row.id}` (step {row.step} of "
            f"{row.steps}, context {row.context_tokens:,} tokens)\n"
        )
        shown = (
            f"{METRICS[name].title} {value:.2f}"
            for name, value in row.metrics.items()
            if value is not None
        )
        yield f"{'; '.join(shown)}\n"
        for title, text in (
            ("End of the prompt", row.prompt_tail[-_SHOWN_CHARACTERS:]),
            ("Expected", row.expected),
            ("Got", row.text),
        ):
            yield from _fenced(title, text)


def _fenced(title: str, text: str) -> Iterator[str]:
    cut = len(text) - _SHOWN_CHARACTERS
    fence = "`" * max(3, *(len(one) + 1 for one in re.findall("`+", text) or [""]))
    more = f" (the first {_SHOWN_CHARACTERS:,} characters of {len(text):,})" if cut > 0 else ""
    yield f"{title}{more}:\n"
    yield f"{fence}text\n{text[:_SHOWN_CHARACTERS] or '(nothing)'}\n{fence}\n"
