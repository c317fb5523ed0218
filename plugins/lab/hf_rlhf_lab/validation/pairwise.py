"""Validate a pairwise judge with the prompts of `hf-rlhf data ai_feedback`.

It compares each gold pair in both orders. If both prefer the same response, it scores 1 and the
other 0; otherwise both score a half, which agreement counts as a tie.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hf_rlhf.config import RunFile
from hf_rlhf.data import text_of
from hf_rlhf.evaluation import Interval
from hf_rlhf.steps import digest
from hf_rlhf.storage import ReportCheck
from hf_rlhf_lab.feedback.ai_feedback import AIFeedback, Annotator, Preference, annotator_of
from hf_rlhf_lab.feedback.asking import Failure
from hf_rlhf_lab.feedback.settings import Reader, described
from hf_rlhf_lab.validation.agreement import agreement
from hf_rlhf_lab.validation.checks import checked, not_measurable
from hf_rlhf_lab.validation.gold import Gold, Scored
from hf_rlhf_lab.validation.report import Report
from hf_rlhf_lab.validation.slices import slices
from hf_rlhf_lab.validation.validate import report_of
from hf_rlhf_lab.validation.worst import SHOWN, worst_pairs

LABEL = "annotator"


def is_annotator(target: str | None) -> bool:
    """Return whether a target is a file of `hf-rlhf data ai_feedback`, with an `annotator`."""
    if target is None or Path(target).suffix not in (".yaml", ".yml"):
        return False
    return LABEL in RunFile.read(target).values


def validate_annotator(
    file: RunFile, gold: Gold, *, by: Sequence[str] = (), samples: int = SHOWN, command: str = ""
) -> Report:
    """Return the report on the annotator of a file, on gold pairs. Raises HfRlhfError."""
    reader = Reader(file)
    settings, annotator = annotator_of(reader)
    reader.finish()
    pairs = _as_pairs(gold)
    answers = _compare(annotator, pairs)
    scores = np.array([score for each in answers for score in _scores(each)])
    scored = Scored(pairs, scores)
    checks = [agreement(scored), *_orders(answers), _failures(answers, settings)]
    checks += [slices(scored, name) for name in dict.fromkeys(by)]
    checks[0].details["worst"] = worst_pairs(scored, samples)
    about = {**described(annotator.client), "principles": digest(annotator.principles)}
    usage = {key: round(value, 4) for key, value in annotator.client.usage().items() if value}
    cost = {"scored": len(pairs), "judges": {LABEL: usage}}
    reward = {"label": LABEL, "digest": digest(about), **about}
    return report_of(reward, pairs, checks, cost, command=command)


def _as_pairs(gold: Gold) -> Gold:
    """Return every two responses with different grades as a pair, the better first."""
    pairs = gold.pairs
    return replace(gold.take(pairs.ravel().tolist()), groups=np.repeat(np.arange(len(pairs)), 2))


def _compare(annotator: Annotator, pairs: Gold) -> list[Preference | Failure]:
    texts = [text_of(each) for each in pairs.completions]
    prompts = [text_of(each) for each in pairs.prompts[::2]]
    return annotator.compare(prompts, list(zip(texts[::2], texts[1::2], strict=True)))


def _scores(answer: Preference | Failure) -> tuple[float, float]:
    if isinstance(answer, Failure):
        return np.nan, np.nan
    if answer.preferred is None:
        return 0.5, 0.5
    return 1.0 - answer.preferred, float(answer.preferred)


def _orders(answers: Sequence[Preference | Failure]) -> list[ReportCheck]:
    """Check that both orders agree more often than by chance, without a position bias."""
    looks = [each.first for each in answers if isinstance(each, Preference) and each.first]
    agree = Interval.of_mean([float(a != b) for a, b in looks])
    rows = [str(row) for row, _ in enumerate(looks) for _ in (0, 1)]
    first = Interval.of_mean([float(each) for look in looks for each in look], rows)
    if agree is None or first is None:
        why = "the judge scores one response at a time, or gave no answer."
        return [not_measurable("order swap", why)]
    text = (
        f"prefers the same response in both orders in {agree.mean:.3f} of {agree.values:,} pairs "
        f"[{agree.low:.3f}, {agree.high:.3f}] (by chance 0.5), and the first in {first.mean:.3f} "
        f"of its answers [{first.low:.3f}, {first.high:.3f}]."
    )
    measures = {"orders_agree": agree, "first": first}
    return [checked("order swap", "pass" if agree.low > 0.5 else "fail", text, measures)]


def _failures(answers: Sequence[Preference | Failure], settings: AIFeedback) -> ReportCheck:
    failed = [each for each in answers if isinstance(each, Failure)]
    share, most = len(failed) / max(1, len(answers)), settings.max_failure_share
    text = f"{len(failed)} of {len(answers):,} pairs have no usable answer ({share:.1%})."
    if failed:
        text += f" The last cause: {failed[-1].reason}: {failed[-1].detail}"
    return checked("failures", "pass" if share <= most else "fail", text, details={"share": share})
