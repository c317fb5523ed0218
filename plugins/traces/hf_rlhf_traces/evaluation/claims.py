"""Statements about models, each with the number and the interval that decide it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.evaluation.intervals import Estimate
from hf_rlhf_traces.evaluation.metrics import METRICS, SAID, TASKS, Task, metrics_of

Verdict = Literal["shown", "not shown", "opposite"]
CANNOT = 0.1
"""A model cannot do what it does in at most this share of the samples."""
ALONE = "traces_only"
"""The trainer whose models never see a summary being written."""
OTHERS = ("traces_prefix", "traces_progressive")
_CLAIM = re.compile(r"\s*(\S+)\s+(\S+)\s*:\s*(.+?)\s*>\s*(.+?)\s*")


@dataclass(frozen=True)
class Claim:
    """One model is better than another, or, without `worse`, at most `CANNOT` of `better` is so."""

    said: str
    task: Task
    metric: str
    better: str
    """A label. With `worse`, the model that is claimed to be better."""
    worse: str | None = None

    def judged(self, estimate: Estimate | None) -> dict[str, Any]:
        """Return the claim with its number and its verdict, for `results.json`."""
        return {
            "claim": self.said,
            "task": self.task,
            "metric": self.metric,
            "models": [one for one in (self.better, self.worse) if one],
            "estimate": estimate.as_json() if estimate else None,
            "verdict": self.verdict(estimate),
        }

    def verdict(self, estimate: Estimate | None) -> Verdict:
        """Return whether the interval shows the claim, or the opposite, or leaves it open.

        `estimate` is of the differences `better` - `worse`, sample by sample; without `worse`, of
        the metric.
        """
        if estimate is None or estimate.low is None or estimate.high is None:
            return "not shown"
        if self.worse is None:
            return _beyond(CANNOT - estimate.high, CANNOT - estimate.low)
        if METRICS[self.metric].better == "lower":
            return _beyond(-estimate.high, -estimate.low)
        return _beyond(estimate.low, estimate.high)


def _beyond(low: float, high: float) -> Verdict:
    return "shown" if low > 0 else "opposite" if high < 0 else "not shown"


def standing(trained: Mapping[str, str | None], tasks: Sequence[Task]) -> Iterator[Claim]:
    """Yield what is claimed of the single strategies, for the models at hand.

    `trained` are labels with the trainer that made each, where that is known. The claim that
    training on summary_only alone does not teach to summarise is put twice: that such a model
    writes a summary of three parts in at most `CANNOT` of its replies, and that its summaries are
    worse than those of each model that was trained to write them.
    """
    if "prefix" not in tasks:
        return
    for alone in (label for label, by in trained.items() if by == ALONE):
        said = f"{alone}, trained on summary_only alone, cannot summarise (at most {CANNOT:.0%})"
        yield Claim(said, "prefix", "summary_valid", alone)
        for other in (label for label, by in trained.items() if by in OTHERS):
            said = f"{other} summarises better than {alone}"
            yield Claim(said, "prefix", "summary_rouge_l", other, alone)


def parse_claim(text: str, labels: Sequence[str], tasks: Sequence[Task]) -> Claim:
    """Return the claim of `--claim "TASK METRIC: LABEL > LABEL"`. Raises ConfigError."""
    match = _CLAIM.fullmatch(text)
    where = f"--claim {text!r}"
    if match is None:
        fix = 'Write "TASK METRIC: BETTER > WORSE", as in "prefix answer_f1: new > old".'
        raise ConfigError([Problem(where, "is not a claim.", fix)])
    task, name, better, worse = match.groups()
    problems = [
        Problem(where, f"no model is labelled {one!r}.", f"Labels: {', '.join(labels)}.")
        for one in (better, worse)
        if one not in labels
    ]
    metric = METRICS.get(name)
    if task not in TASKS or task not in tasks:
        shown = ", ".join(tasks)
        problems.append(Problem(where, f"{task!r} is not measured here.", f"Tasks: {shown}."))
    elif metric is None or task not in metric.tasks or metric.better is None:
        known = ", ".join(one.name for one in metrics_of(_task(task)) if one.better)
        what = f"{name!r} is no metric of {task} of which more or less is better."
        problems.append(Problem(where, what, f"There are {known}."))
    if problems or metric is None:
        raise ConfigError(problems)
    said = f"{better} is better than {worse}: {metric.title} ({SAID[_task(task)]})"
    return Claim(said, _task(task), name, better, worse)


def _task(text: str) -> Task:
    return next(task for task in TASKS if task == text)
