"""The metrics of one reply, beside what was expected. Pure functions.

What is not defined for a sample is None and in no mean: it is never 0. What is defined by the
sample alone, and that the reply fails to give, is 0: otherwise a model could leave out what it does
badly. So an answer is scored where one is *expected*, whatever the reply is; only the share of
verbatim quotes is by what the reply holds, and stands beside the recall for that reason.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_rlhf_traces.evaluation.metrics import Task
from hf_rlhf_traces.evaluation.text import (
    Alike,
    exact_match,
    recall,
    rouge_l,
    searches_alike,
    token_f1,
)
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.summary import Malformed, Quote, Summary, are_verbatim, split
from hf_rlhf_traces.trace import Answer, Reasoning, Search, Step

Scores = Mapping[str, float | None]


@dataclass(frozen=True)
class Expected:
    """What the reply to a sample is compared with."""

    task: Task
    text: str
    """The reply of the training data: summary and reply for `prefix`, the reply for `only`."""
    context: str
    """The prompt of the sample of `steps`: what quotes have to stand in."""
    answers: tuple[str, ...] = ()
    """The answers that are known to be right, of the trace's fields."""


@dataclass(frozen=True)
class Lengths:
    """In tokens of the model's own tokenizer."""

    reply: int
    """With the end token."""
    summary: int | None
    """Of the summary with its tags; None where the reply has none."""
    context: int
    cut_off: bool
    """Whether no end token came in time."""


@dataclass(frozen=True)
class Reply:
    """What a model wrote, read as leniently as can be."""

    task: Task
    text: str
    summary: Summary | None
    """Of `prefix`: the first one, if it can be read."""
    summary_text: str
    """The same with its tags, as it was written."""
    steps: tuple[Step, ...]
    """Reasoning, searches and answers that stand after it."""
    rest: str
    """The text that these were read from."""

    @property
    def kinds(self) -> frozenset[type]:
        """Whether it searches or answers; both, or neither, if it does so."""
        return frozenset(type(step) for step in self.steps if isinstance(step, Search | Answer))

    @property
    def answer(self) -> str | None:
        """The last answer."""
        answers = [step.content for step in self.steps if isinstance(step, Answer)]
        return answers[-1] if answers else None

    @property
    def searches(self) -> list[Search]:
        """The queries, several if they are parallel."""
        return [step for step in self.steps if isinstance(step, Search)]

    @property
    def quotes(self) -> Sequence[Quote]:
        """The quotes of its summary."""
        return self.summary.quotes if self.summary else ()


def read_reply(text: str, task: Task, form: Format) -> Reply:
    """Read what a model wrote. Nothing makes this fail: what cannot be read is not there."""
    summary, rest, written = None, text, ""
    if task == "prefix":
        try:
            summary, rest = split(text, form)
            written = text[text.index(f"<{form.summary}>") : len(text) - len(rest)]
        except Malformed:
            pass
    return Reply(task, text, summary, written, tuple(form.steps(rest)), rest)


def score(text: str, expected: Expected, lengths: Lengths, form: Format) -> Scores:
    """Return the metrics of a reply by name, those of its task; None where not defined.

    - format_valid: `is_valid`.
    - kind_right: it searches where a search is expected, answers where an answer is, and does not
      do both. None where the expected reply does neither.
    - answer_*, expected_*: see `_answer`; query_*: see `_query`; summary_*: see `_summary`;
      quotes_*: see `_quotes`.
    - tokens: of the reply, its end token included; cut_off: whether it reached max_new_tokens.
    """
    reply = read_reply(text, expected.task, form)
    wanted = read_reply(expected.text, expected.task, form)
    metrics: dict[str, float | None] = {
        "format_valid": float(is_valid(reply, form)),
        "kind_right": float(reply.kinds == wanted.kinds) if wanted.kinds else None,
        **_answer(reply, wanted, expected.answers),
        **_query(reply, wanted),
        "tokens": float(lengths.reply),
        "cut_off": float(lengths.cut_off),
    }
    if expected.task == "prefix":
        metrics |= _summary(reply, wanted, lengths)
        metrics |= _quotes(reply, wanted, expected.context, form)
    return metrics


def is_valid(reply: Reply, form: Format) -> bool:
    """Say whether a reply is of the form that is taught, and nothing else.

    For `prefix` a summary of three parts, at the very beginning. Then, each in its tags: reasoning
    if any and a search, or several of both (parallel searches); or reasoning if any and one answer.
    Searches and answers are not empty. Between and around there is only space; what stands in tags
    is escaped where it has to be.
    """
    if reply.task == "prefix" and not (
        reply.summary and reply.text.lstrip().startswith(f"<{form.summary}>")
    ):
        return False
    if _unspaced(form.said(reply.steps)) != _unspaced(reply.rest):
        return False
    if any(_is_empty(step) for step in reply.steps):
        return False
    letters = {Reasoning: "r", Search: "s", Answer: "a"}
    order = "".join(letters[type(step)] for step in reply.steps if type(step) in letters)
    return re.fullmatch("(r*s)+|r*a", order) is not None


def _is_empty(step: Step) -> bool:
    match step:
        case Search(query):
            return not query.strip()
        case Answer(content):
            return not content.strip()
        case _:
            return False


def _answer(reply: Reply, wanted: Reply, known: Sequence[str]) -> dict[str, float | None]:
    """Exact match and token F1 of the last answer, where an answer is expected.

    Against that of the trace (`answer_*`), and against the answers that are known to be right, the
    best of them (`expected_*`; None where there is none). A reply without an answer has 0.
    """
    names = ("answer_exact", "answer_f1", "expected_exact", "expected_f1")
    metrics: dict[str, float | None] = dict.fromkeys(names)
    if wanted.answer is None:
        return metrics
    for name, against in (("answer", (wanted.answer,)), ("expected", tuple(known))):
        if against:
            answer = reply.answer
            metrics[f"{name}_exact"] = max(_of(exact_match, answer, correct) for correct in against)
            metrics[f"{name}_f1"] = max(_of(token_f1, answer, correct) for correct in against)
    return metrics


def _of(measure: Alike, answer: str | None, expected: str) -> float:
    return 0.0 if answer is None else measure(answer, expected)


def _query(reply: Reply, wanted: Reply) -> dict[str, float | None]:
    """How alike the next queries are, where a search is expected (see `text.searches_alike`)."""
    if not wanted.searches:
        return {"query_f1": None, "query_similarity": None}
    by_words, by_characters = searches_alike(reply.searches, wanted.searches)
    return {"query_f1": by_words, "query_similarity": by_characters}


def _summary(reply: Reply, wanted: Reply, lengths: Lengths) -> dict[str, float | None]:
    """Whether there is a summary of three parts, how alike it is, and its length.

    summary_rouge_l is that of the contents of the three parts, titles left out; 0 without a
    summary. summary_tokens and compression (its tokens by those of the context) are None without.
    """
    alike = None
    if wanted.summary:
        alike = rouge_l(_contents(reply.summary), _contents(wanted.summary))
    size = lengths.summary
    return {
        "summary_valid": float(reply.summary is not None),
        "summary_rouge_l": alike,
        "summary_tokens": None if size is None else float(size),
        "compression": None if size is None or not lengths.context else size / lengths.context,
    }


def _contents(summary: Summary | None) -> str:
    if summary is None:
        return ""
    quotes = (quote.text for quote in summary.quotes)
    return "\n".join([summary.question, summary.reasoning, *quotes])


def _quotes(reply: Reply, wanted: Reply, context: str, form: Format) -> dict[str, float | None]:
    """Whether quotes are faithful, and whether they are there.

    - quotes_verbatim: the share of its quotes that stand word for word in a result of the context;
      None without quotes, as nothing is quoted wrongly there. It is 1 for one word that is quoted
      rightly, so read it beside the next.
    - quotes_recall: the share of the words of the expected quotes that stand in its *verbatim*
      quotes; 0 without quotes, None where none is expected. It is 1 for the whole context quoted,
      which compression shows.
    - quotes_none: whether it has no quote where some are expected.
    - quotes_invented: how many of its quotes are not verbatim; None without quotes.
    """
    quotes = reply.quotes
    verbatim = are_verbatim(quotes, context, form)
    faithful = [quote.text for quote, there in zip(quotes, verbatim, strict=True) if there]
    return {
        "quotes_verbatim": sum(verbatim) / len(verbatim) if verbatim else None,
        "quotes_recall": recall(faithful, [quote.text for quote in wanted.quotes]),
        "quotes_none": float(not quotes) if wanted.quotes else None,
        "quotes_invented": float(len(verbatim) - sum(verbatim)) if verbatim else None,
    }


def _unspaced(text: str) -> str:
    return "".join(text.split())
