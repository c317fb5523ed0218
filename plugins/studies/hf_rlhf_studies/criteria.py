"""What a study's plan calls failure: the sentences that say so, and whether each came true.

A failure criterion is a sentence of the plan with a word such as "fails" or "Failure"; a planted
failure, a question, and a run that "failed to" do something are none. After a heading or words that
only announce it ("What would count as failure."), it is the next sentence, or each item of a list.
Every one stands in the study file word for word, so that no report leaves one out.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.formatting import markdown_table
from hf_rlhf_studies.estimates import Estimate
from hf_rlhf_studies.study import Criterion, MetIf, Study

if TYPE_CHECKING:
    from hf_rlhf_studies.results import Results

_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+|#]|\d+\.)\s)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+\.)\s")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*_]*\s+")
_FAILURE = re.compile(
    r"(?<!planted )\bfail(?:s|ed|ing|ures?)?\b(?! (?:to|for|modes?)\b)(?!.*\?$)", re.IGNORECASE
)
_ANNOUNCES = re.compile(
    r"\bfail[^.]*:$|^(?:[#*_ ]*what |[*_]{2}).*\bfail\w*(?: criteri\w+)?\W*$", re.IGNORECASE
)
_MET, _NOT_MET, _NOT_DECIDABLE = "met", "not met", "not decidable"


@dataclass(frozen=True)
class CriterionResult:
    """A failure criterion, whether it is met, and the numbers that tell."""

    quote: str
    outcome: str
    """`met`, `not met`, or `not decidable`: these runs cannot tell."""
    numbers: str


def failure_sentences(plan: str) -> list[str]:
    """Return the sentences of a plan that are failure criteria, with single blanks."""
    required: list[str] = []
    announced = listed = False
    for block in _BLOCK.split(plan):
        item = _ITEM.match(block)
        first, *rest = _SENTENCE_END.split(_collapsed(block[item.end() :] if item else block))
        if block.startswith("#"):
            announced = bool(_FAILURE.search(first) or _ANNOUNCES.search(first))
            continue
        listed = item is not None and (listed or announced)
        if listed:
            required.append(first)
            announced = False
            continue
        for sentence in (first, *rest):
            if _ANNOUNCES.search(sentence):
                announced = True
            elif sentence and (announced or _FAILURE.search(sentence)):
                required.append(sentence)
                announced = False
    return required


def check_criteria(study: Study, plan: str, recorded: str = "") -> None:
    """Raise ConfigError where the study file leaves out or misquotes a criterion of its plan.

    Those of the plan as it was recorded at the first run count too.
    """
    name, text = study.file.plan, _collapsed(plan)
    quotes = [_collapsed(criterion.quote) for criterion in study.file.criteria]
    problems = [
        Problem(
            f"{study.source.name} criteria.{number}.quote",
            f"{quote!r} does not stand in {name}.",
            "Quote a sentence of the plan word for word; the plan stays as it is.",
        )
        for number, quote in enumerate(quotes)
        if quote not in text
    ]
    problems += [
        Problem(
            f"{study.source.name} criteria",
            f"{name} says what counts as failure, which the study file leaves out: {sentence!r}.",
            f"Quote it under `criteria`, with `met_if`, or with `outcome` and a `note`. If {name} "
            "was changed since the first run, put the sentence back.",
        )
        for sentence in dict.fromkeys([*failure_sentences(recorded), *failure_sentences(plan)])
        if not any(sentence in quote for quote in quotes)
    ]
    if problems:
        raise ConfigError(problems)


def criterion_results(
    results: "Results", verdicts: Collection[tuple[str, str, str]]
) -> list[CriterionResult]:
    """Return whether each failure criterion is met.

    Args:
        results: what was measured.
        verdicts: of the predicted questions: name, block, and verdict.
    """
    outcomes = []
    for criterion in results.study.file.criteria:
        tests = [each for test in criterion.met_if for each in _tested(test, results, verdicts)]
        numbers = "; ".join(filter(None, [*(text for _, text in tests), criterion.note]))
        outcome = criterion.outcome or _together([each for each, _ in tests], criterion)
        outcomes.append(CriterionResult(_collapsed(criterion.quote), outcome, numbers))
    return outcomes


def _together(outcomes: Sequence[str], criterion: Criterion) -> str:
    decisive, other = (_NOT_MET, _MET) if criterion.all_of else (_MET, _NOT_MET)
    if decisive in outcomes:
        return decisive
    return _NOT_DECIDABLE if _NOT_DECIDABLE in outcomes or not outcomes else other


def _tested(
    test: MetIf, results: "Results", verdicts: Collection[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield an outcome with its numbers, for each block and question that a test is about."""
    for block in results.study.file.blocks if test.block is None else [test.block]:
        where = f" ({block})" if block else ""
        if test.not_shown is None:
            outcome, numbers = _beyond(test, _estimate(test, results, block))
            pair = test.condition + (f" - {test.against}" if test.against else "")
            yield outcome, f"{pair}, {test.metric}{where}: {numbers}"
            continue
        own = [words for name, of, words in verdicts if (name, of) == (test.not_shown, block)]
        for words in own or ["not measured"]:
            partial = words == "not measured" or words.endswith("seeds only)")
            outcome = _NOT_MET if words == "yes" else _NOT_DECIDABLE if partial else _MET
            yield outcome, f"{test.not_shown}{where}: {words}"


def _estimate(test: MetIf, results: "Results", block: str) -> Estimate | None:
    if test.against is None:
        return results.of(block, test.condition, test.metric)
    return results.difference(block, test.condition, test.against, test.metric)


def _beyond(test: MetIf, mean: Estimate | None) -> tuple[str, str]:
    """Return whether both intervals lie beyond the bound; in between, the runs cannot tell."""
    if mean is None:
        return _NOT_DECIDABLE, "not measured"
    numbers = f"{mean.mean:.3f} ({mean.low:.3f} to {mean.high:.3f}), "
    numbers += f"t {mean.t_low:.3f} to {mean.t_high:.3f}"
    low, high = min(mean.low, mean.t_low), max(mean.high, mean.t_high)
    if test.below is not None:
        low, high, bound = -high, -low, -test.below
    else:
        bound = test.above or 0.0
    if low > bound:
        return _MET, numbers
    return (_NOT_MET if high <= bound else _NOT_DECIDABLE), numbers


def criteria_section(outcomes: Sequence[CriterionResult]) -> Iterator[str]:
    """Yield the lines of the report: every failure criterion, first of all."""
    if not outcomes:
        return
    yield from ("## What the plan calls failure", "")
    met = sum(each.outcome == _MET for each in outcomes)
    if met:
        yield f"**By its plan this study failed: {met} of {len(outcomes)} criteria met.**"
    yield "Met: both intervals beyond the bound, or a prediction that is not a plain yes. Not"
    yield from ("decidable: these runs cannot tell.", "")
    rows = [[f"“{each.quote}”", f"**{each.outcome}**", each.numbers] for each in outcomes]
    yield from (markdown_table(["the plan", "outcome", "measured"], rows), "")


def _collapsed(text: str) -> str:
    return " ".join(text.split())
