"""Compute the metrics of a reply from the expected reply, by pure functions.

An undefined metric is None, never 0, and is left out of means. Whether it is defined depends on the
sample: a missing part of a reply scores 0, otherwise a model could skip its weak parts. An answer
is therefore scored whenever an answer is *expected*. Only the share of verbatim quotes depends on
the reply; read it beside the recall.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hf_rlhf_rollouts import Answer, Reasoning, Search, Step
from hf_rlhf_traces.evaluation.metrics import TaskName
from hf_rlhf_traces.evaluation.text import (
    exact_match,
    match_searches,
    recall,
    rouge_l,
    token_f1,
)
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.summary import Malformed, Quote, Summary, are_verbatim, split

Scores = Mapping[str, float | None]


@dataclass(frozen=True)
class Expected:
    """The reference for the reply to a sample."""

    task: TaskName
    text: str
    """The reply in the training data: summary and reply for `prefix`, the reply for `only`."""
    context: str
    """The prompt of the sample of `steps`, which quotes must occur in."""
    answers: tuple[str, ...] = ()
    """The correct answers in the trace's fields."""


@dataclass(frozen=True)
class Reply:
    """A model's text, parsed leniently."""

    task: TaskName
    text: str
    summary: Summary | None
    """For `prefix`: the first summary, if it can be parsed."""
    summary_text: str
    """The summary with its tags."""
    steps: tuple[Step, ...]
    """Reasoning, searches and answers after the summary."""
    rest: str
    """The source text of the steps."""

    @property
    def kinds(self) -> frozenset[type]:
        """Return whether it searches, answers, does both, or neither."""
        return frozenset(type(step) for step in self.steps if isinstance(step, Search | Answer))

    @property
    def answer(self) -> str | None:
        """The last answer."""
        answers = [step.content for step in self.steps if isinstance(step, Answer)]
        return answers[-1] if answers else None

    @property
    def searches(self) -> list[Search]:
        """Return the queries, several if they are parallel."""
        return [step for step in self.steps if isinstance(step, Search)]

    @property
    def quotes(self) -> Sequence[Quote]:
        """Return the quotes of its summary."""
        return self.summary.quotes if self.summary else ()


def read_reply(text: str, task: TaskName, form: Format) -> Reply:
    """Parse a reply. It never fails: unparsable parts are missing."""
    summary, rest, summary_text = None, text, ""
    if task == "prefix":
        try:
            summary, rest = split(text, form)
            summary_text = text[text.index(f"<{form.summary}>") : len(text) - len(rest)]
        except Malformed:
            pass
    return Reply(task, text, summary, summary_text, tuple(form.steps(rest)), rest)


def score(
    text: str,
    expected: Expected,
    form: Format,
    *,
    count: Callable[[str], int],
    tokens: int,
    cut_off: bool,
) -> Scores:
    """Return the metrics of a reply for its task by name; None if undefined.

    `kind_right`: the reply searches or answers, as expected, and does not do both; None if the
    expected reply does neither.

    Args:
        text: the reply.
        expected: the reference.
        form: the tags of both.
        count: the tokens of a text.
        tokens: of the reply, its end token included.
        cut_off: whether the reply lacks an end token.
    """
    reply = read_reply(text, expected.task, form)
    wanted = read_reply(expected.text, expected.task, form)
    metrics: dict[str, float | None] = {
        "format_valid": float(is_valid(reply, form)),
        "kind_right": float(reply.kinds == wanted.kinds) if wanted.kinds else None,
        **_answer(reply, wanted, expected.answers),
        "query_f1": match_searches(reply.searches, wanted.searches) if wanted.searches else None,
        "tokens": float(tokens),
        "cut_off": float(cut_off),
    }
    if expected.task == "prefix":
        metrics |= _summary(reply, wanted, expected.context, count)
        metrics |= _quotes(reply, wanted, expected.context, form)
    return metrics


def is_valid(reply: Reply, form: Format) -> bool:
    """Return whether a reply has exactly the required form.

    For `prefix` a summary of three parts comes first. Then follow tags with optional reasoning and
    either searches (several if parallel, each with optional reasoning) or a single answer. Searches
    and answers are not empty. Only white space is allowed elsewhere; tag contents are escaped if
    necessary.
    """
    if reply.task == "prefix" and not (
        reply.summary and reply.text.lstrip().startswith(f"<{form.summary}>")
    ):
        return False
    if _unspaced(form.turn_text(reply.steps)) != _unspaced(reply.rest):
        return False
    texts = [step.query for step in reply.searches]
    texts += [step.content for step in reply.steps if isinstance(step, Answer)]
    if not all(text.strip() for text in texts):
        return False
    letters = {Reasoning: "r", Search: "s", Answer: "a"}
    order = "".join(letters[type(step)] for step in reply.steps if type(step) in letters)
    return re.fullmatch("(r*s)+|r*a", order) is not None


def _answer(reply: Reply, wanted: Reply, correct: Sequence[str]) -> Scores:
    """Return exact match and token F1 of the last answer, if an answer is expected.

    Compares with the trace's answer (`answer_*`) and the best of the correct answers (`expected_*`;
    None without correct answers). A reply without an answer scores 0.
    """
    names = ("answer_exact", "answer_f1", "expected_exact", "expected_f1")
    metrics: dict[str, float | None] = dict.fromkeys(names)
    if wanted.answer is None:
        return metrics
    for name, answers in (("answer", [wanted.answer]), ("expected", correct)):
        for kind, measure in (("exact", exact_match), ("f1", token_f1)):
            scores = [measure(reply.answer or "", answer) for answer in answers]
            if scores:
                metrics[f"{name}_{kind}"] = 0.0 if reply.answer is None else max(scores)
    return metrics


def _summary(reply: Reply, wanted: Reply, context: str, count: Callable[[str], int]) -> Scores:
    """Return whether there is a summary of three parts, its similarity, and its length.

    summary_rouge_l compares the contents of the three parts without titles; 0 without a summary.
    summary_tokens and compression (its tokens by the context's) are None without a summary.
    """
    rouge = rouge_l(_contents(reply.summary), _contents(wanted.summary))
    size = count(reply.summary_text) if reply.summary_text else None
    of_context = count(context)
    return {
        "summary_valid": float(reply.summary is not None),
        "summary_rouge_l": rouge if wanted.summary else None,
        "summary_tokens": None if size is None else float(size),
        "compression": None if size is None or not of_context else size / of_context,
    }


def _contents(summary: Summary | None) -> str:
    if summary is None:
        return ""
    quotes = (quote.text for quote in summary.quotes)
    return "\n".join([summary.question, summary.reasoning, *quotes])


def _quotes(reply: Reply, wanted: Reply, context: str, form: Format) -> Scores:
    """Measure whether quotes are faithful, and whether the expected quotes are present.

    - quotes_verbatim: the share of quotes that occur word for word in a result of the context; None
      without quotes. A single correct word scores 1, so read it beside the next.
    - quotes_recall: the share of the expected quotes' words in the *verbatim* quotes; 0 without
      quotes, None if none is expected. Quoting the whole context scores 1: see compression.
    """
    quotes = reply.quotes
    verbatim = are_verbatim(quotes, context, form)
    faithful = [quote.text for quote, flag in zip(quotes, verbatim, strict=True) if flag]
    return {
        "quotes_verbatim": sum(verbatim) / len(verbatim) if verbatim else None,
        "quotes_recall": recall(faithful, [quote.text for quote in wanted.quotes]),
    }


def _unspaced(text: str) -> str:
    return "".join(text.split())
