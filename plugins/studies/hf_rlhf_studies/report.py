"""The report of a study: every seed, both intervals, a verdict for each prediction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hf_rlhf.cards import cell as table_cell
from hf_rlhf.cards import duration, number
from hf_rlhf_studies.estimates import Estimate, adjusted, verdict
from hf_rlhf_studies.folder import plan_changes, plan_text
from hf_rlhf_studies.results import Results
from hf_rlhf_studies.study import Control, Question

BOOTSTRAP = {
    "rows": "95% bootstrap over held-out rows (10,000 resamples; seeds are not drawn)",
    "seeds_and_rows": "95% bootstrap over seeds and held-out rows (10,000 resamples; both drawn)",
}
T_INTERVAL = {
    "shared": "95% t interval with seeds and rows as crossed random effects (Hillis 2007)",
    "by_seed": "95% t interval over the seeds' means, whose rows differ",
}
DECISION = {
    "intervals": (
        "A plain yes needs both intervals on the predicted side of 0 and an adjusted p below 0.05."
    ),
    "signs": (
        "A plain yes needs the bootstrap interval on the predicted side of 0, the same sign in "
        "every seed, and a difference larger than the seeds of either condition are apart."
    ),
}


@dataclass(frozen=True)
class Answer:
    """A question with what was measured."""

    question: Question
    block: str
    difference: Estimate
    p_holm: float | None
    verdict: str


@dataclass(frozen=True)
class ControlResult:
    """A control with what was measured over the condition's start."""

    control: Control
    block: str
    rose: Estimate
    fell: Estimate
    """Of the metric that should fall: its change."""

    @property
    def fires(self) -> bool:
        """Whether one metric rose and the other fell, each beyond its bootstrap interval."""
        return self.rose.low > 0 and self.fell.high < 0

    @property
    def outcome(self) -> str:
        """What came, and whether it was expected."""
        fires = self.fires and not (self.rose.t_low > 0 and self.fell.t_high < 0)
        words = "fires" + (" by the bootstrap only" if fires else "") if self.fires else "silent"
        return f"{words}, {'as' if self.fires == self.control.expected else 'not as'} expected"


def answers(results: Results, *, predicted: bool) -> list[Answer]:
    """Return the answers to the questions with a prediction, or to those without.

    p is adjusted for the number of questions in the list.
    """
    file = results.study.file
    result = []
    for question in file.questions:
        if (question.predicted is not None) != predicted:
            continue
        for block in question.blocks or file.blocks:
            difference = _difference(results, question, block)
            if difference is not None:
                result.append((question, block, difference))
    p_values = adjusted([difference.p for _, _, difference in result])
    return [
        Answer(question, block, difference, p, _verdict(results, question, block, difference, p))
        for (question, block, difference), p in zip(result, p_values, strict=True)
    ]


def _difference(results: Results, question: Question, block: str) -> Estimate | None:
    condition, other, metric = question.condition, question.against, question.metric
    if not results.seeds(block, condition, *([other] if other else [])):
        return None
    if other is None:
        return results.gain(block, condition, metric)
    if question.of == "gain":
        return results.difference_of_gains(block, condition, other, metric)
    return results.difference(block, condition, other, metric)


def _verdict(
    results: Results, question: Question, block: str, difference: Estimate, p: float | None
) -> str:
    if question.predicted is None:
        return ""
    pair = [name for name in (question.condition, question.against) if name]
    if len(pair) == 2 and (why := results.incomparable(block, pair[0], pair[1], question.metric)):
        return f"not comparable: {why}"
    spread = results.spread(block, pair, question.metric)
    words = verdict(difference, question.predicted, p, results.study.file.decision, spread)
    wanted = len(set(results.study.file.seeds))
    count = len(difference.by_seed)
    return words if count >= wanted else f"{words} (of {count} seeds only)"


def control_results(results: Results) -> Iterator[ControlResult]:
    """Yield the controls that can be looked at."""
    for control in results.study.file.controls:
        for block in control.blocks or results.study.file.blocks:
            rises = control.rises.removeprefix("-")
            rose = results.gain(block, control.condition, rises)
            fell = results.gain(block, control.condition, control.falls)
            if rose is not None and fell is not None:
                rose = rose if rises == control.rises else rose.negative()
                yield ControlResult(control, block, rose, fell)


def with_interval(estimate: Estimate | None, sign: str = "+") -> str:
    """Write a mean with its bootstrap interval, or why there is none."""
    if estimate is None:
        return ""
    if estimate.constant:
        return f"{estimate.mean:{sign}.3f} (all alike)"
    return f"{estimate.mean:{sign}.3f} ({estimate.low:{sign}.3f} to {estimate.high:{sign}.3f})"


def t_interval(estimate: Estimate | None) -> str:
    """Write a t interval."""
    return "" if estimate is None else f"{estimate.t_low:+.3f} to {estimate.t_high:+.3f}"


def p_value(p: float | None) -> str:
    """Write a p, or a dash where nothing varies."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return a Markdown table, its first columns to the left and the others to the right."""
    rule = "|" + "---|" * left + "--:|" * (len(headings) - left)
    lines = [
        "| " + " | ".join(row) + " |" for row in (headings, *(map(table_cell, r) for r in rows))
    ]
    return [lines[0], rule, *lines[1:], ""]


def markdown(results: Results, plots: Sequence[str]) -> str:
    """Return RESULTS.md."""
    file = results.study.file
    lines = [f"# {file.title}", "", *_introduction(results)]
    lines += [*_questions(results), *_controls(results)]
    lines += [part for name in plots for part in (f"![{name.removesuffix('.png')}]({name})", "")]
    for block in file.blocks:
        if any(cell.block == block for cell in results.cells):
            lines += [f"## Measured{f' in {block}' if block else ''}", "", *_block(results, block)]
    lines += _runs(results)
    return "\n".join([*lines, *_plan(results)])


def _introduction(results: Results) -> Iterator[str]:
    file = results.study.file
    source = results.study.source.name
    yield f"Written by `hf-rlhf study report {source}` from `rows.json`, which has every row."
    yield f"In brackets: {BOOTSTRAP[file.resample if file.held_out_rows == 'shared' else 'rows']}."
    yield f"Beside it: {T_INTERVAL[file.held_out_rows]}. A change is over the condition's start."
    yield ""
    if results.missing:
        names = ", ".join(cell.folder for cell in results.missing)
        yield f"**{len(results.missing)} of {len(results.missing) + len(results.cells)} runs are "
        yield f"missing** ({names}): `hf-rlhf study run {source}` continues with them."
        yield ""


def _block(results: Results, block: str) -> Iterator[str]:
    conditions = dict.fromkeys(cell.condition for cell in results.cells if cell.block == block)
    seeds = sorted({cell.seed for cell in results.cells if cell.block == block})
    for metric in results.metrics(block):
        rows = []
        for condition in conditions:
            result = results.of(block, condition, metric)
            if result is None:
                continue
            gain = results.gain(block, condition, metric)
            by_seed = (gain or result).by_seed
            before = results.values(block, condition, metric, before=True)
            start = results.estimate(before, block, condition, metric) if before else None
            rows.append(
                [
                    results.study.label(condition),
                    *([f"{start.mean:.3f}"] if start else []),
                    with_interval(result, ""),
                    with_interval(gain),
                    t_interval(gain),
                    *(_seed(by_seed, seed, "+" if gain else "") for seed in seeds),
                ]
            )
        measured_before = bool(rows) and len(rows[0]) == 5 + len(seeds)
        heads = ["condition", *["before"] * measured_before, "after", "change", "its t interval"]
        lines = table([*heads, *(f"seed {seed}" for seed in seeds)], rows)
        yield from (f"### {metric}", "", *lines)


def _seed(by_seed: Mapping[int, float], seed: int, sign: str) -> str:
    return f"{by_seed[seed]:{sign}.3f}" if seed in by_seed else ""


def _questions(results: Results) -> Iterator[str]:
    heads = ["difference", "t interval", "p", "p (Holm)"]
    if predicted := answers(results, predicted=True):
        yield from ("## What was predicted", "")
        yield f"p is of the t interval, adjusted for these {len(predicted)} questions (Holm 1979)."
        yield from (DECISION[results.study.file.decision], "")
        names = ["question", "block", "metric", "predicted", *heads, "verdict"]
        rows = [[*_question(item), item.question.predicted or "", *_numbers(item), item.verdict]
                for item in predicted]  # fmt: skip
        yield from table(names, rows, 3)
    if others := answers(results, predicted=False):
        yield from ("## Differences for which nothing was predicted", "")
        yield from (f"p is adjusted for these {len(others)} differences.", "")
        rows = [[*_question(other), *_numbers(other)] for other in others]
        yield from table(["difference of", "block", "metric", *heads], rows, 3)


def _question(answer: Answer) -> list[str]:
    question = answer.question
    return [title_of(question), answer.block or "-", question.metric]


def title_of(question: Question) -> str:
    """Return what tables call a question."""
    gains = " (gains)" if question.of == "gain" else ""
    pair = f"{question.condition} - {question.against or 'its start'}{gains}"
    return f"{question.name}: {pair}" if question.name else pair


def _numbers(answer: Answer) -> list[str]:
    result = answer.difference
    return [with_interval(result), t_interval(result), p_value(result.p), p_value(answer.p_holm)]


def _controls(results: Results) -> Iterator[str]:
    rows = [
        [
            result.control.name or results.study.label(result.control.condition),
            result.block or "-",
            f"{result.control.rises}: {with_interval(result.rose)}",
            f"{result.control.falls}: {with_interval(result.fell)}",
            result.outcome,
        ]
        for result in control_results(results)
    ]
    if rows:
        yield from ("## Controls", "")
        yield "A control fires where one metric rose over the start while the other fell, each"
        yield from ("beyond its interval.", "")
        heads = ["control", "block", "should rise together", "with a fall", "outcome"]
        yield from table(heads, rows, 2)


def _runs(results: Results) -> Iterator[str]:
    names = list(
        dict.fromkeys(name for cell in results.cells.values() for name in cell.get("values") or {})
    )
    rows = []
    for (block, condition), cells in _by_condition(results).items():
        name = results.study.label(condition)
        numbers = [[(cell.get("values") or {}).get(key) for cell in cells] for key in names]
        rows.append(
            [
                f"{block}: {name}" if block else name,
                str(len(cells)),
                ", ".join(dict.fromkeys(str(cell.get("steps") or "-") for cell in cells)),
                duration(_mean([cell.get("training_seconds") for cell in cells])),
                *("" if (mean := _mean(each)) is None else number(mean) for each in numbers),
            ]
        )
    yield from ("## Runs", "")
    yield from table(["condition", "seeds", "steps", "training, mean", *names], rows)
    commits = sorted({cell["commit"] for cell in results.cells.values() if cell.get("commit")})
    packages = ", ".join(f"{name} {version}" for name, version in results.packages.items())
    yield f"Commits that the runs ran at: {'; '.join(commits) or 'not recorded'}."
    yield from (f"Packages: {packages or 'not recorded'}.", "")


def _by_condition(results: Results) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    result: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell, content in results.cells.items():
        result.setdefault((cell.block, cell.condition), []).append(content)
    return result


def _mean(values: Sequence[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None


def _plan(results: Results) -> Iterator[str]:
    file = results.study.file
    if file.plan is None:
        return
    yield from ("## Plan", "")
    changes = plan_changes(results.plan, plan_text(results.study))
    if changes is None or results.plan is None:
        yield f"[{file.plan}]({file.plan}). Its text was not recorded when these runs began."
    else:
        head = f"[{file.plan}]({file.plan}), sha256 {results.plan['sha256'][:16]}"
        yield f"{head}, recorded at the first run, {results.plan['recorded']}."
        if changes:
            yield f"**Changed since in {len(changes)} lines:**"
            yield from ("", "```diff", *changes, "```")
        else:
            yield "Unchanged since."
    yield ""
