"""A summary without a model: sentences of the context, chosen by the words they share.

The question is copied. Reasoning that is too long is cut to the last sentence of each thought. Of
each search result those sentences are quoted that have most in common with the question, the
thoughts and the searches before it (Okapi BM25 over the sentences of all results; Robertson &
Zaragoza 2009), newest results first, each once, within a budget of characters. Quotes are cut out
of the documents, so they are word for word. The same input gives the same summary.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.context_blocks import ContextBlock, Passage, blocks, passages
from hf_rlhf_traces.summaries.parts import Outcome, Row, summary_outcome
from hf_rlhf_traces.summaries.summary import Quote, Summary
from hf_rlhf_traces.summaries.words import sentences, words

K1, B = 1.2, 0.75
"""Saturation and length normalisation of BM25: Lucene's defaults."""
WEIGHTS = {"question": 1.0, "think": 1.0, "search": 3.0}
"""Weight of a query word by where it occurs: in the question, or in the thoughts and searches
right before a result. A word in several has the sum."""
MAX_GAP = 2
"""Characters between two neighbours that are quoted as one."""
VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class _Sentence:
    passage: Passage
    start: int
    end: int
    words: frozenset[str]

    @property
    def text(self) -> str:
        return self.passage.text[self.start : self.end]


@dataclass(frozen=True, slots=True, eq=False)
class _Result:
    """A search result in sentences, and in how many of them each word occurs."""

    sentences: Sequence[_Sentence]
    counts: Counter[str]

    @classmethod
    def of(cls, text: str, form: Format) -> "_Result":
        cut = [
            _Sentence(passage, start, end, frozenset(words(passage.text[start:end])))
            for passage in passages(text, form)
            for start, end in sentences(passage.text)
        ]
        return cls(cut, Counter(word for sentence in cut for word in sentence.words))


@dataclass
class Extractive:
    """Summarises one sample after another; those of one trace share what they have in common."""

    form: Format
    max_quote_chars: int = 2000
    """Characters of all quotes together."""
    max_reasoning_chars: int = 1000
    """Reasoning up to this is copied; longer reasoning is condensed to it."""
    keep: float = 0.7
    """A sentence is quoted if its score is at least this share of the best one of its result."""
    _trace: str = ""
    _results: dict[str, _Result] = field(default_factory=dict)

    def settings(self) -> Mapping[str, Any]:
        """Return what a summary depends on, beside its sample."""
        names = ("max_quote_chars", "max_reasoning_chars", "keep")
        limits = {name: getattr(self, name) for name in names}
        return {"by": "extractive", "version": VERSION, **limits}

    def usage(self) -> Mapping[str, float]:
        """Return nothing: it costs nothing."""
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
        if row["trace"] != self._trace:
            self._trace = row["trace"]
            self._results.clear()
        context = blocks(row["prompt"], self.form)
        # Thoughts may be encrypted; what was searched for then tells most of them.
        thoughts = _texts(context, "think") or _texts(context, "search")
        reasoning = _condensed(thoughts, self.max_reasoning_chars)
        return Summary(row["question"], reasoning, tuple(self._quotes(row["question"], context)))

    def _quotes(self, question: str, context: Sequence[ContextBlock]) -> Iterator[Quote]:
        pairs = [
            (self._result(text), _word_weights(question, before))
            for text, before in _results_of(context)
        ]
        chosen: dict[str, _Sentence] = {}
        left = self.max_quote_chars
        for sentence in _ranked(pairs, self.keep):
            if len(sentence.text) <= left and sentence.text not in chosen:
                chosen[sentence.text] = sentence
                left -= len(sentence.text)
        picked = set(chosen.values())
        for result in dict.fromkeys(result for result, _ in pairs):
            yield from _joined(result.sentences, picked)

    def _result(self, text: str) -> _Result:
        if text not in self._results:
            self._results[text] = _Result.of(text, self.form)
        return self._results[text]


def _texts(context: Iterable[ContextBlock], kind: str) -> list[str]:
    return [block.text for block in context if block.kind == kind]


def _results_of(context: Sequence[ContextBlock]) -> Iterator[tuple[str, list[ContextBlock]]]:
    """Yield the text of each result, and the blocks right before it."""
    before: list[ContextBlock] = []
    after_result = False
    for block in context:
        if block.kind == "information":
            yield block.text, before
        else:
            before = [block] if after_result else [*before, block]
        after_result = block.kind == "information"


def _word_weights(question: str, before: Sequence[ContextBlock]) -> dict[str, float]:
    weights: dict[str, float] = dict.fromkeys(words(question), WEIGHTS["question"])
    for kind in ("think", "search"):
        for word in dict.fromkeys(words(" ".join(_texts(before, kind)))):
            weights[word] = weights.get(word, 0.0) + WEIGHTS[kind]
    return weights


def _ranked(
    pairs: Sequence[tuple[_Result, Mapping[str, float]]], keep: float
) -> Iterator[_Sentence]:
    """Yield the best sentence of each result, newest results first, and then those that score at
    least `keep` of the best of their result.
    """
    results = [result for result, _ in pairs]
    total = sum(len(result.sentences) for result in results)
    length = sum(result.counts.total() for result in results) / max(total, 1)
    others: list[tuple[float, _Sentence]] = []
    for result, weights in reversed(pairs):
        if not result.sentences:
            continue
        query = {}
        for word, weight in weights.items():
            count = sum(other.counts[word] for other in results)
            query[word] = weight * math.log(1 + (total - count + 0.5) / (count + 0.5))
        scores = [_score(sentence, query, length) for sentence in result.sentences]
        top = max(scores)
        best = result.sentences[scores.index(top)]
        yield best
        others += [
            (score / top, sentence)
            for score, sentence in zip(scores, result.sentences, strict=True)
            if sentence is not best and score >= keep * top > 0
        ]
    yield from (sentence for _, sentence in sorted(others, key=lambda pair: -pair[0]))


def _score(sentence: _Sentence, query: Mapping[str, float], length: float) -> float:
    """Return the BM25 score of a sentence; `length` is the mean number of different words."""
    # Sets have no fixed order, and the sum must not depend on one.
    value = math.fsum(query[word] for word in sentence.words & query.keys())
    return value / (1 + K1 * (1 - B + B * len(sentence.words) / length)) if value else 0.0


def _joined(ordered: Sequence[_Sentence], chosen: set[_Sentence]) -> Iterator[Quote]:
    """Yield the chosen sentences of a result as quotes, neighbours as one."""
    start = None
    for number, sentence in enumerate(ordered):
        if sentence not in chosen:
            continue
        start = sentence.start if start is None else start
        following = ordered[number + 1] if number + 1 < len(ordered) else None
        if following is None or following not in chosen or not _adjacent(sentence, following):
            yield Quote(sentence.passage.text[start : sentence.end], sentence.passage.title)
            start = None


def _adjacent(sentence: _Sentence, following: _Sentence) -> bool:
    same = sentence.passage is following.passage
    return same and following.start - sentence.end <= MAX_GAP


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
