"""What a study's plan calls failure: the sentences that say so, and whether each came true.

A failure criterion is a sentence of the plan that says under which condition the study fails, is
refuted or does not succeed. Every one stands in the study file word for word, so that no report
leaves one out.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hf_rlhf.formatting import markdown_table
from hf_rlhf_studies.folder import collapsed
from hf_rlhf_studies.results import Results
from hf_rlhf_studies.study import MetIf

MET, NOT_DECIDABLE, NOT_MET = OUTCOMES = ("met", "not decidable", "not met")
"""Of several tests the first of these counts."""


@dataclass(frozen=True)
class CriterionResult:
    """A failure criterion, whether it is met, and the numbers that tell."""

    quote: str
    outcome: str
    """One of `OUTCOMES`."""
    numbers: str


def criterion_results(
    results: Results, verdicts: Collection[tuple[str, str, str]]
) -> list[CriterionResult]:
    """Return whether each failure criterion is met; `verdicts`: name, block, verdict of questions.

    Any of its tests meets it. A test with a bound is met where both intervals lie beyond it, and
    not met where both lie on the other side; in between, these runs cannot tell.
    """
    outcomes = []
    for criterion in results.study.file.criteria:
        tests = [each for test in criterion.met_if for each in _tested(test, results, verdicts)]
        numbers = "; ".join(filter(None, [*(text for _, text in tests), criterion.note]))
        first = min((each for each, _ in tests), key=OUTCOMES.index, default=NOT_DECIDABLE)
        outcome = criterion.outcome or first
        outcomes.append(CriterionResult(collapsed(criterion.quote), outcome, numbers))
    return outcomes


def _tested(
    test: MetIf, results: Results, verdicts: Collection[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield an outcome with its numbers, for each block and question that a test is about."""
    for block in results.study.file.blocks if test.block is None else [test.block]:
        where = f" ({block})" if block else ""
        if test.not_shown is None:
            yield _beyond(test, results, block, where)
            continue
        own = [words for name, of, words in verdicts if (name, of) == (test.not_shown, block)]
        for words in own or ["not measured"]:
            if words == "yes":
                outcome = NOT_MET
            elif words == "not measured" or words.endswith("seeds only)"):
                outcome = NOT_DECIDABLE
            else:
                outcome = MET
            yield outcome, f"{test.not_shown}{where}: {words}"


def _beyond(test: MetIf, results: Results, block: str, where: str) -> tuple[str, str]:
    if test.against is None:
        name, mean = test.condition, results.of(block, test.condition, test.metric)
    else:
        name = f"{test.condition} - {test.against}"
        mean = results.difference(block, test.condition, test.against, test.metric)
    if mean is None:
        return NOT_DECIDABLE, f"{name}, {test.metric}{where}: not measured"
    numbers = f"{name}, {test.metric}{where}: {mean.mean:.3f} ({mean.low:.3f} to {mean.high:.3f}), "
    numbers += f"t {mean.t.low:.3f} to {mean.t.high:.3f}"
    low, high = min(mean.low, mean.t.low), max(mean.high, mean.t.high)
    if test.above is not None:
        beyond, short = low > test.above, high <= test.above
    else:
        beyond, short = high < (test.below or 0.0), low >= (test.below or 0.0)
    if beyond:
        return MET, numbers
    return (NOT_MET if short else NOT_DECIDABLE), numbers


def criteria_section(outcomes: Sequence[CriterionResult]) -> Iterator[str]:
    """Yield the lines of the report: every failure criterion, first of all."""
    if not outcomes:
        return
    yield from ("## What the plan calls failure", "")
    if met := sum(each.outcome == MET for each in outcomes):
        yield f"**By its plan this study failed: {met} of {len(outcomes)} criteria met.**"
    yield "Met: both intervals beyond the bound, or a prediction that is not a plain yes. Not"
    yield from ("decidable: these runs cannot tell.", "")
    rows = [[f"“{each.quote}”", f"**{each.outcome}**", each.numbers] for each in outcomes]
    yield from (markdown_table(["the plan", "outcome", "measured"], rows), "")
