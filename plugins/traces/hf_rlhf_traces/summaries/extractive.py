"""Summarise without a model: select sentences of the context by shared words.

The question is copied. Long reasoning is cut to the last sentence of each thought. For each search
result the sentences most similar to the question, the thoughts and the preceding searches are
quoted (Okapi BM25 over the sentences of all results; Robertson & Zaragoza 2009). The newest results
come first, each sentence once, within a budget of characters. Quotes are cut out of the documents,
so they are verbatim. The same input gives the same summary.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from hf_rlhf_traces.evaluation.text import words
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.context_blocks import passages
from hf_rlhf_traces.summaries.sentences import sentences
from hf_rlhf_traces.summaries.summary import Outcome, Quote, Row, Summary, summary_outcome

K1, B = 1.2, 0.75
"""Saturation and length normalisation of BM25: Lucene's defaults."""
WEIGHTS = {"question": 1.0, "think": 1.0, "search": 3.0}
"""Weight of a query word by its location: the question, or the thoughts and searches just before a
result. A word in several gets the sum."""
VERSION = 3
Positive = Annotated[int, Ge(1)]


Block = tuple[str, str]
"""The field of a tag in `Format`, and the text in it."""


class _Sentence(NamedTuple):
    quote: Quote
    words: frozenset[str]


@dataclass
class Extractive:
    """Summarises samples sequentially."""

    form: Format
    max_quote_chars: Positive = 2000
    """Maximum characters of all quotes together."""
    max_reasoning_chars: Positive = 1000
    """Maximum characters of reasoning; longer reasoning is condensed."""
    keep: Annotated[float, Ge(0), Le(1)] = 0.7
    """Minimum score of a quoted sentence, as a share of the best score in its result."""

    def settings(self) -> Mapping[str, Any]:
        """Return the settings of a summary."""
        limits = {name: value for name, value in asdict(self).items() if name != "form"}
        return {"by": "extractive", "version": VERSION, **limits}

    def usage(self) -> Mapping[str, float]:
        """Return nothing, because it costs nothing."""
        return {}

    def summarize_all(
        self, samples: Iterable[tuple[int, Row]], save: Callable[[int, Outcome], None]
    ) -> None:
        """Save the summary of each sample under its number, in order."""
        for number, row in samples:
            summary = self.summarise(row)
            save(number, summary_outcome(summary, [True] * len(summary.quotes)))

    def summarise(self, row: Row) -> Summary:
        """Return the summary of the prompt of a row of `steps`."""
        context = self.form.blocks(row["prompt"])
        # Thoughts may be encrypted; the searches then tell most of them.
        thoughts = _texts(context, "think") or _texts(context, "search")
        reasoning = _condensed(thoughts, self.max_reasoning_chars)
        return Summary(row["question"], reasoning, tuple(self._quotes(row["question"], context)))

    def _quotes(self, question: str, context: Sequence[Block]) -> list[Quote]:
        results = [
            (list(self._sentences(text)), _word_weights(question, before))
            for text, before in _results_of(context)
        ]
        chosen: set[Quote] = set()
        left = self.max_quote_chars
        for quote in _ranked(results, self.keep):
            if len(quote.text) <= left and quote.text not in {each.text for each in chosen}:
                chosen.add(quote)
                left -= len(quote.text)
        quotes = (sentence.quote for cut, _ in results for sentence in cut)
        return list(dict.fromkeys(quote for quote in quotes if quote in chosen))

    def _sentences(self, text: str) -> Iterator[_Sentence]:
        for passage in passages(text, self.form):
            for start, end in sentences(passage.text):
                quote = Quote(passage.text[start:end], passage.title)
                yield _Sentence(quote, frozenset(words(quote.text)))


def _texts(context: Iterable[Block], kind: str) -> list[str]:
    return [text for name, text in context if name == kind]


def _results_of(context: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Yield the text of each result, and the blocks just before it."""
    before: list[Block] = []
    after_result = False
    for block in context:
        if block[0] == "information":
            yield block[1], before
        else:
            before = [block] if after_result else [*before, block]
        after_result = block[0] == "information"


def _word_weights(question: str, before: Sequence[Block]) -> Mapping[str, float]:
    weights: dict[str, float] = dict.fromkeys(words(question), WEIGHTS["question"])
    for kind in ("think", "search"):
        for word in dict.fromkeys(words(" ".join(_texts(before, kind)))):
            weights[word] = weights.get(word, 0.0) + WEIGHTS[kind]
    return weights


def _ranked(
    results: Sequence[tuple[Sequence[_Sentence], Mapping[str, float]]], keep: float
) -> Iterator[Quote]:
    """Yield each result's best sentence, newest results first, then the sentences that score at
    least `keep` of the best in their result.
    """
    every = [sentence.words for cut, _ in results for sentence in cut]
    counts = Counter(word for each in every for word in each)
    length = sum(map(len, every)) / max(len(every), 1)
    others: list[tuple[float, Quote]] = []
    for cut, weights in reversed(results):
        if not cut:
            continue
        query = {
            word: weight * math.log(1 + (len(every) - counts[word] + 0.5) / (counts[word] + 0.5))
            for word, weight in weights.items()
        }
        scores = [_score(sentence.words, query, length) for sentence in cut]
        top = max(scores)
        yield cut[scores.index(top)].quote
        others += [
            (score / top, sentence.quote)
            for score, sentence in zip(scores, cut, strict=True)
            if score >= keep * top > 0
        ]
    yield from (quote for _, quote in sorted(others, key=lambda pair: -pair[0]))


def _score(found: frozenset[str], query: Mapping[str, float], length: float) -> float:
    """Return the BM25 score of a sentence; `length` is the mean number of distinct words."""
    # Sets have no fixed order, and the sum must not depend on the order.
    value = math.fsum(query[word] for word in found & query.keys())
    return value / (1 + K1 * (1 - B + B * len(found) / length)) if value else 0.0


def _condensed(thoughts: Sequence[str], limit: int) -> str:
    """Return the thoughts, or the last sentence of each within `limit` characters, newest first."""
    full = "\n".join(thought.strip() for thought in thoughts)
    if len(full) <= limit:
        return full
    parts: list[str] = []
    for thought in reversed(thoughts):
        for start, end in list(sentences(thought))[-1:]:
            parts.append(thought[start:end][:limit])
            limit -= len(parts[-1]) + 1
        if limit <= 0:
            break
    return "\n".join(reversed(parts))
