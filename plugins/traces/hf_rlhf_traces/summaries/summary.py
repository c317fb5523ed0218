"""Render and parse a summary of an agent's results: three parts as text in tags.

    <summary>
    <question>…</question>
    <reasoning>…</reasoning>
    <evidence>
    <quote title="…">…</quote>
    </evidence>
    </summary>

Contents are escaped by `Format.escape`, and titles like HTML attributes.
"""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf_traces.format import Format

Row = Mapping[str, Any]
Outcome = Mapping[str, Any]
"""A summary (`summary_outcome`), or `failed` and `detail`: the reason for its absence."""
_TITLE = re.compile(r"\s+title=\"([^\"]*)\"\s*")


class Malformed(ValueError):
    """The text has no valid summary; the message states the reason for the model."""


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of a search result, and the title of its document."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """The question, the reasoning so far, and the evidence."""

    question: str
    reasoning: str
    quotes: tuple[Quote, ...]


def render(summary: Summary, form: Format) -> str:
    """Return a summary in tags. Parsing drops white space around its contents."""
    quotes = "".join(f"{_quote(quote, form)}\n" for quote in summary.quotes)
    parts = (
        (form.question, form.escape(summary.question)),
        (form.reasoning, form.escape(summary.reasoning)),
        (form.evidence, f"\n{quotes}"),
    )
    inside = "\n".join(f"<{tag}>{content}</{tag}>" for tag, content in parts)
    return f"<{form.summary}>\n{inside}\n</{form.summary}>"


def _quote(quote: Quote, form: Format) -> str:
    titled = f' title="{html.escape(quote.title)}"' if quote.title else ""
    return f"<{form.quote}{titled}>{form.escape(quote.text)}</{form.quote}>"


def summary_outcome(summary: Summary, verbatim: Iterable[bool], replies: int = 0) -> Outcome:
    """Return the stored form of a summary.

    `verbatim` records for each quote whether it occurs in the context; `replies` is the number of
    model replies it took.
    """
    quotes = [
        {"title": quote.title, "text": quote.text, "verbatim": is_verbatim}
        for quote, is_verbatim in zip(summary.quotes, verbatim, strict=True)
    ]
    text = {"question": summary.question, "reasoning": summary.reasoning}
    return {**text, "quotes": quotes, "replies": replies}


def parse(text: str, form: Format) -> Summary:
    """Return the first summary in a text. Raises as `split` does."""
    return split(text, form)[0]


def split(text: str, form: Format) -> tuple[Summary, str]:
    """Return the first summary in a text, and the text after it.

    Raises Malformed if there is none, if a part is missing, repeated or out of order, if the
    question is empty, or if there is text outside the parts.
    """
    _, inside, after = _tagged(text, form.summary, "")
    where = f" in <{form.summary}>"
    contents, rest = [], inside
    names = (form.question, form.reasoning, form.evidence)
    if missing := [name for name in names if f"<{name}>" not in inside]:
        listed = ", ".join(f"<{name}>" for name in missing)
        raise Malformed(f"{listed} is missing{where}.")
    for name in names:
        before, content, rest = _tagged(rest, name, where)
        _check_empty(before, f"before <{name}>{where}")
        contents.append(content)
    _check_empty(rest, f"after </{form.evidence}>{where}")
    question, reasoning, evidence = contents
    if not question.strip():
        raise Malformed(f"<{form.question}> is empty{where}.")
    texts = form.unescape(question).strip(), form.unescape(reasoning).strip()
    return Summary(*texts, tuple(_quotes(evidence, form))), after


def _tagged(text: str, tag: str, where: str) -> tuple[str, str, str]:
    before, opened, rest = text.partition(f"<{tag}>")
    if not opened:
        raise Malformed(f"<{tag}> is missing{where}, or not in its place.")
    inside, closed, after = rest.partition(f"</{tag}>")
    if not closed:
        raise Malformed(f"</{tag}> is missing{where}.")
    return before, inside, after


def _check_empty(text: str, where: str) -> None:
    if text.strip():
        raise Malformed(f"text stands {where}: {text.strip()[:60]!r}.")


def _quotes(evidence: str, form: Format) -> list[Quote]:
    """Parse the quotes of the evidence, which contains nothing else."""
    *quoted, rest = evidence.split(f"</{form.quote}>")
    where = f"outside of <{form.quote}> in <{form.evidence}>"
    _check_empty(rest, where)
    quotes = []
    for part in quoted:
        before, opened, inside = part.partition(f"<{form.quote}")
        attributes, closed, text = inside.partition(">")
        title = _TITLE.fullmatch(attributes)
        _check_empty(before, where)
        if not (opened and closed) or (attributes.strip() and title is None):
            raise Malformed(f'a quote does not open with <{form.quote} title="…">.')
        title_text = html.unescape(title[1]) if title else ""
        quotes.append(Quote(form.unescape(text).strip(), title_text))
    return quotes


def are_verbatim(quotes: Sequence[Quote], context: str, form: Format) -> list[bool]:
    """Return whether each quote occurs word for word in a search result of the context.

    The context is the prompt of a sample of `steps`, and a result an `<information>` block of it.
    Escaped tags are restored, and runs of white space count as a single space; everything else must
    be equal. An empty quote never occurs.
    """
    blocks = form.blocks(context)
    results = [_spaced(inside) for tag, inside in blocks if tag == "information"]
    texts = [_spaced(quote.text) for quote in quotes]
    return [bool(text) and any(text in result for result in results) for text in texts]


def _spaced(text: str) -> str:
    return " ".join(text.split())
