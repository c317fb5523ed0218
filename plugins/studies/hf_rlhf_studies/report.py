"""The report of a study: every seed, both intervals, a verdict for each prediction."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hf_rlhf.evaluation import holm
from hf_rlhf.formatting import counted, duration, markdown_table, number
from hf_rlhf_studies.criteria import CriterionResult, criteria_section, criterion_results
from hf_rlhf_studies.estimates import Estimate, verdict
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
        "every seed, and a difference larger than that between two seeds of either condition."
    ),
}
POWER = (
    "*Could show*: the smallest difference whose adjusted p would be below 0.05 with this noise, "
    "whatever the other questions say. A difference that is not shown may be smaller than that, "
    "and need not be 0."
)
NO_POWER = (
    "**A planted failure stayed silent.** These runs do not show that a failure would be seen, or "
    "mitigated: null results of this study are no evidence of absence."
)
STANDARD = (
    "Where the metric differs, its definition is not the same in both conditions. To compare them, "
    "add a reward with `weight: 0` that is the same in all of them."
)


@dataclass(frozen=True)
class Answer:
    """A question with what was measured."""

    title: str
    question: Question
    block: str
    difference: Estimate | None
    """None where the two cannot be compared."""
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
        """Whether a metric rose and the other fell, each beyond its bootstrap interval."""
        return self.rose.low > 0 and self.fell.high < 0

    @property
    def outcome(self) -> str:
        """Whether it fired, and whether that was expected."""
        words = "silent"
        if self.fires:
            by_t = self.rose.t.low > 0 and self.fell.t.high < 0
            words = "fires" if by_t else "fires by the bootstrap only"
        return f"{words}, {'as' if self.fires == self.control.expected else 'not as'} expected"


def answers(results: Results, *, predicted: bool) -> list[Answer]:
    """Return the answers to the questions with a prediction, or without.

    The latter include each condition against the study's reference. p is adjusted for the
    number of questions in the list.
    """
    file = results.study.file
    measured = []
    titled = [(title_of(question), question) for question in file.questions]
    for title, question in [*titled, *_reference_questions(results)]:
        if (question.predicted is not None) != predicted:
            continue
        for block in file.blocks:
            why = _incomparable(results, question, block)
            difference = None if why else _difference(results, question, block)
            if why or difference:
                measured.append((title, question, block, difference, why))
    p_values = holm([gap.t.p if gap else None for *_, gap, _ in measured])
    return [
        Answer(title, question, block, gap, p, why or _verdict(results, question, block, gap, p))
        for (title, question, block, gap, why), p in zip(measured, p_values, strict=True)
    ]


def _reference_questions(results: Results) -> list[tuple[str, Question]]:
    file, label = results.study.file, results.study.label
    if (reference := file.reference) is None:
        return []
    metrics = dict.fromkeys(name for block in file.blocks for name in results.metrics(block))
    others = [name for name in file.conditions if name != reference]
    return [
        (
            f"{label(name)} - {label(reference)}",
            Question(condition=name, against=reference, metric=metric),
        )
        for metric in metrics
        for name in others
    ]


def _difference(results: Results, question: Question, block: str) -> Estimate | None:
    if question.against is None:
        return results.gain(block, question.condition, question.metric)
    pair = (question.condition, question.against)
    return results.difference(block, *pair, question.metric, of_gains=question.of == "gain")


def _incomparable(results: Results, question: Question, block: str) -> str:
    if question.against is None:
        return ""
    why = results.incomparable(block, question.condition, question.against, question.metric)
    return f"not comparable: {why}" if why else ""


def _verdict(
    results: Results, question: Question, block: str, difference: Estimate | None, p: float | None
) -> str:
    if question.predicted is None or difference is None:
        return ""
    pair = [name for name in (question.condition, question.against) if name]
    spread = results.spread(block, pair, question.metric)
    words = verdict(difference, question.predicted, p, results.study.file.decision, spread)
    count = len(difference.by_seed)
    planned = len(set(results.study.file.seeds))
    return words if count >= planned else f"{words} (of {count} seeds only)"


def control_results(results: Results) -> Iterator[ControlResult]:
    """Yield the controls that can be looked at."""
    for control in results.study.file.controls:
        for block in results.study.file.blocks:
            rises = control.rises.removeprefix("-")
            rose = results.gain(block, control.condition, rises)
            fell = results.gain(block, control.condition, control.falls)
            if rose is not None and fell is not None:
                rose = rose if rises == control.rises else rose.negative()
                yield ControlResult(control, block, rose, fell)


def criteria_of(results: Results, predicted: Sequence[Answer]) -> list[CriterionResult]:
    """Return the outcome of the plan's failure criteria, with the answers to its predictions."""
    verdicts = [(each.question.name, each.block, each.verdict) for each in predicted]
    return criterion_results(results, verdicts)


def with_interval(estimate: Estimate | None, sign: str = "+") -> str:
    """Write a mean with its bootstrap interval, or why there is none."""
    if estimate is None:
        return ""
    if estimate.constant:
        return f"{estimate.mean:{sign}.3f} (all alike)"
    return f"{estimate.mean:{sign}.3f} ({estimate.low:{sign}.3f} to {estimate.high:{sign}.3f})"


def t_interval(estimate: Estimate | None, sign: str = "+") -> str:
    """Write a t interval."""
    return f"{estimate.t.low:{sign}.3f} to {estimate.t.high:{sign}.3f}" if estimate else ""


def p_value(p: float | None) -> str:
    """Write a p, or a dash where nothing varies."""
    if p is None:
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def markdown(results: Results, plots: Sequence[str]) -> str:
    """Return RESULTS.md."""
    lines = [f"# {results.study.file.title}", "", *_introduction(results)]
    predicted = answers(results, predicted=True)
    lines += criteria_section(criteria_of(results, predicted))
    lines += [*_questions(results, predicted), *_controls(results)]
    for name in plots:
        lines += [f"![{name.removesuffix('.png')}]({name})", ""]
    for block in results.study.file.blocks:
        if results.conditions(block):
            lines += [f"## Measured{f' in {block}' if block else ''}", "", *_block(results, block)]
    return "\n".join([*lines, *_runs(results), *_plan(results)])


def _introduction(results: Results) -> Iterator[str]:
    file, source = results.study.file, results.study.source.name
    yield f"Written by `hf-rlhf study report {source}` from `rows.parquet`, which has every row."
    yield f"In brackets: {BOOTSTRAP[file.resample if file.held_out_rows == 'shared' else 'rows']}."
    yield f"Beside it: {T_INTERVAL[file.held_out_rows]}. A change is over the condition's start."
    if len(file.seeds) == 1:
        yield "With one seed both are over rows alone, and tell nothing of another seed."
    yield ""
    if results.missing:
        names = ", ".join(cell.folder for cell in results.missing)
        yield f"**{len(results.missing)} of {len(results.missing) + len(results.cells)} runs are"
        yield f"missing** ({names}): `hf-rlhf study run {source}` continues with them."
        yield ""
    measured = {name for cell in results.cells.values() for name in cell["rows"]}
    if lacking := [name for name in file.metrics if measured and name not in measured]:
        yield f"**No run measured {', '.join(lacking)}**; measured: {', '.join(sorted(measured))}."
        yield ""


def _block(results: Results, block: str) -> Iterator[str]:
    for metric in results.metrics(block):
        heads, rows = metric_table(results, block, metric)
        yield from (f"### {metric}", "", markdown_table(heads, rows, 1), "")
        for condition in results.conditions(block):
            mean = results.of(block, condition, metric)
            if mean and mean.left_out:
                count = counted(mean.left_out, "row")
                yield f"{results.study.label(condition)}: t intervals are without {count} that some"
                yield from ("seed could not score.", "")


def metric_table(
    results: Results, block: str, metric: str
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return the headings and rows of a metric's table, a row for each condition."""
    seeds = sorted({cell.seed for cell in results.cells if cell.block == block})
    heads = ["condition", "before", "after", "change", "its t interval"]
    rows = []
    for condition in results.conditions(block):
        if (after := results.of(block, condition, metric)) is None:
            continue
        gain = results.gain(block, condition, metric)
        by_seed, sign = (gain or after).by_seed, "+" if gain else ""
        values = results.values(block, condition, metric, before=True)
        before = results.estimate(values, block, condition, metric)
        row = [results.study.label(condition), f"{before.mean:.3f}" if before else ""]
        row += [with_interval(after, ""), with_interval(gain), t_interval(gain)]
        rows.append(
            row + [f"{by_seed[seed]:{sign}.3f}" if seed in by_seed else "" for seed in seeds]
        )
    lines = [[*heads, *(f"seed {seed}" for seed in seeds)], *rows]
    if not any(row[1] for row in rows):
        lines = [[condition, *rest] for condition, _, *rest in lines]
    return lines[0], lines[1:]


def _questions(results: Results, predicted: Sequence[Answer]) -> Iterator[str]:
    heads = ["difference", "t interval", "p", "p (Holm)"]
    if predicted:
        yield from ("## What was predicted", "")
        yield f"p is of the t interval, adjusted for these {len(predicted)} questions (Holm 1979)."
        yield DECISION[results.study.file.decision]
        yield from (POWER, "")
        names = ["question", "block", "metric", "predicted", *heads, "could show", "verdict"]
        rows = [
            [
                *_question(answer),
                answer.question.predicted or "",
                *_numbers(answer),
                _smallest(answer, len(predicted)),
                answer.verdict,
            ]
            for answer in predicted
        ]
        yield from (markdown_table(names, rows, 3), "")
    if others := answers(results, predicted=False):
        yield from ("## Differences for which nothing was predicted", "")
        count = sum(answer.difference is not None for answer in others)
        yield f"p is adjusted for {counted(count, 'difference')}."
        if any(answer.verdict.endswith("the metric differs") for answer in others):
            yield STANDARD
        rows = [[*_question(answer), *_numbers(answer)] for answer in others]
        names = ["difference of", "block", "metric", *heads]
        yield from ("", markdown_table(names, rows, 3), "")


def _smallest(answer: Answer, questions: int) -> str:
    smallest = answer.difference and answer.difference.smallest_shown(questions)
    return "-" if smallest is None else f"{smallest:.3f}"


def _question(answer: Answer) -> list[str]:
    return [answer.title, answer.block or "-", answer.question.metric]


def title_of(question: Question) -> str:
    """Return the name of a question in tables."""
    gains = " (gains)" if question.of == "gain" else ""
    pair = f"{question.condition} - {question.against or 'its start'}{gains}"
    return f"{question.name}: {pair}" if question.name else pair


def _numbers(answer: Answer) -> list[str]:
    if (difference := answer.difference) is None:
        return [answer.verdict, "", "-", "-"]
    numbers = [with_interval(difference), t_interval(difference)]
    return [*numbers, p_value(difference.t.p), p_value(answer.p_holm)]


def _controls(results: Results) -> Iterator[str]:
    measured = list(control_results(results))
    rows = [
        [
            results.study.label(each.control.condition),
            each.block or "-",
            f"{each.control.rises}: {with_interval(each.rose)}",
            f"{each.control.falls}: {with_interval(each.fell)}",
            each.outcome,
        ]
        for each in measured
    ]
    if rows:
        yield from ("## Controls", "")
        yield "A control fires where one metric rose over the start while the other fell, each"
        yield from ("beyond its interval.", "")
        heads = ["control", "block", "should rise together", "with a fall", "outcome"]
        yield from (markdown_table(heads, rows, 2), "")
        if any(each.control.expected and not each.fires for each in measured):
            yield from (NO_POWER, "")


def _runs(results: Results) -> Iterator[str]:
    names = list(
        dict.fromkeys(name for cell in results.cells.values() for name in cell.get("values") or {})
    )
    rows = []
    pairs = dict.fromkeys((cell.block, cell.condition) for cell in results.cells)
    for block, condition in pairs:
        cells = results.of_condition(block, condition).values()
        label = results.study.label(condition)
        numbers = (_mean((cell.get("values") or {}).get(key) for cell in cells) for key in names)
        rows.append(
            [
                f"{block}: {label}" if block else label,
                str(len(cells)),
                ", ".join(dict.fromkeys(str(cell.get("steps") or "-") for cell in cells)),
                duration(_mean(cell.get("training_seconds") for cell in cells)),
                *("" if mean is None else number(mean) for mean in numbers),
            ]
        )
    yield from ("## Runs", "")
    heads = ["condition", "seeds", "steps", "training, mean", *names]
    yield from (markdown_table(heads, rows, 1), "")
    commits = sorted({cell["commit"] for cell in results.cells.values() if cell.get("commit")})
    packages = ", ".join(f"{name} {version}" for name, version in results.packages.items())
    yield f"Commits that the runs ran at: {'; '.join(commits) or 'not recorded'}."
    yield from (f"Packages: {packages or 'not recorded'}.", "")


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [float(value) for value in values if value is not None]
    return fmean(numbers) if numbers else None


def _plan(results: Results) -> Iterator[str]:
    file = results.study.file
    if file.plan is None:
        return
    yield from ("## Plan", "")
    if not results.plan:
        yield f"[{file.plan}]({file.plan}). Its text was not recorded when these runs began."
    else:
        head = f"[{file.plan}]({file.plan}), sha256 {results.plan['sha256'][:16]}"
        yield f"{head}, recorded at the first run, {results.plan['recorded']}."
        if changes := plan_changes(results.plan, plan_text(results.study)):
            yield f"**Changed since in {len(changes)} lines:**"
            yield from ("", "```diff", *changes, "```")
        else:
            yield "Unchanged since."
    yield ""
