"""A summary without a model: sentences of the context, chosen by the words they share.

The question stands as it was asked. Reasoning that is too long is cut to the last sentence of each
thought. Of each search result those sentences are quoted that have most to do with the question,
the thoughts and the searches before it (Okapi BM25 over the sentences of all results; Robertson &
Zaragoza 2009), newest results first, each once, within a budget of characters. What is quoted is
cut out of the documents, so it is word for word by construction. The same input gives the same
summary.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.summaries.context_blocks import ContextBlock, Passage, blocks, passages
from hf_rlhf_traces.summaries.summary import Quote, Summary
from hf_rlhf_traces.summaries.words import sentences, words

K1, B = 1.2, 0.75
"""How fast repeats saturate, and how much length counts: Lucene's defaults."""
QUESTION, THOUGHT, SEARCHED = 1.0, 1.0, 3.0
"""What a word counts that stands in the question, in the thoughts right before a result, and in
the searches for it; one that stands in several counts for each."""
SPACES = 2
"""Sentences with more characters of white space between them are quoted by themselves."""
VERSION = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """How long summaries may be, and how selective."""

    max_quote_chars: int = 2000
    """Characters of all quotes together."""
    max_reasoning_chars: int = 1000
    """Reasoning up to this stands as it is; longer one is condensed to this."""
    keep: float = 0.7
    """A sentence is quoted if its score is at least this share of the best one of its result."""

    def __post_init__(self) -> None:
        """Raise ConfigError for limits within which nothing can be said."""
        problems = [
            Problem(f"--{name}", f"is {getattr(self, name)}.", "Give at least 1.")
            for name in ("max_quote_chars", "max_reasoning_chars")
            if getattr(self, name) < 1
        ]
        if not 0 <= self.keep <= 1:
            problems.append(Problem("--keep", f"is {self.keep}.", "Give a share from 0 to 1."))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class _Sentence:
    passage: int
    position: int
    start: int
    end: int
    words: int
    """How many different ones."""

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Result:
    """A search result in sentences, and in which of them each word stands."""

    passages: Sequence[Passage]
    sentences: Sequence[_Sentence]
    holding: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, text: str, form: Format) -> "_Result":
        parts = passages(text, form)
        cut: list[_Sentence] = []
        holding: dict[str, list[int]] = {}
        for number, part in enumerate(parts):
            for position, (start, end) in enumerate(sentences(part.text)):
                inside = set(words(part.text[start:end]))
                for word in inside:
                    holding.setdefault(word, []).append(len(cut))
                cut.append(_Sentence(number, position, start, end, len(inside)))
        return cls(parts, cut, holding)

    def text(self, sentence: _Sentence) -> str:
        return self.passages[sentence.passage].text[sentence.start : sentence.end]

    def scores(self, query: Mapping[str, float], length: float) -> list[float]:
        """Score each sentence; `length` is how many different words one has on average."""
        worth = [0.0] * len(self.sentences)
        for word, weight in query.items():
            for number in self.holding.get(word, ()):
                worth[number] += weight
        return [
            value / (1 + K1 * (1 - B + B * sentence.words / length)) if value else 0.0
            for value, sentence in zip(worth, self.sentences, strict=True)
        ]


@dataclass
class Extractive:
    """Summarises one sample after another; those of one trace share what they have in common."""

    form: Format
    limits: Limits = field(default_factory=Limits)
    _trace: str = ""
    _results: dict[str, _Result] = field(default_factory=dict)

    def settings(self) -> Mapping[str, Any]:
        """Return what summaries depend on, beside the sample."""
        return {"by": "extractive", "version": VERSION, **asdict(self.limits)}

    def summarise(self, row: Mapping[str, Any]) -> Summary:
        """Return the summary of the prompt of a row of `steps`."""
        if row["trace"] != self._trace:
            self._trace = row["trace"]
            self._results.clear()
        context = blocks(row["prompt"], self.form)
        thoughts = [block.text for block in context if block.kind == "think"]
        # Where the thoughts are not known, what was searched for tells most of what they were.
        texts = thoughts or [block.text for block in context if block.kind == "search"]
        quotes = tuple(self._quotes(row["question"], context))
        return Summary(row["question"], _condensed(texts, self.limits.max_reasoning_chars), quotes)

    def _quotes(self, question: str, context: Sequence[ContextBlock]) -> Iterator[Quote]:
        results = [(self._result(block), before) for block, before in _results(context)]
        chosen = _choose(question, results, self.limits)
        for (result, _), chosen_sentences in zip(results, chosen, strict=True):
            yield from _joined(result, chosen_sentences)

    def _result(self, text: str) -> _Result:
        if text not in self._results:
            self._results[text] = _Result.of(text, self.form)
        return self._results[text]


def _results(context: Sequence[ContextBlock]) -> Iterator[tuple[str, Sequence[ContextBlock]]]:
    """Yield each result and what was thought and searched for right before it."""
    before: list[ContextBlock] = []
    after_result = False
    for block in context:
        if block.kind == "information":
            yield block.text, tuple(before)
        elif after_result:
            before = [block]
        else:
            before.append(block)
        after_result = block.kind == "information"


RankedSentence = tuple[int, _Sentence]
"""The number of a result, and a sentence of it."""


def _choose(
    question: str, pairs: Sequence[tuple[_Result, Sequence[ContextBlock]]], limits: Limits
) -> list[list[_Sentence]]:
    """Return the sentences of each result that are quoted: each once, as many as there is room."""
    chosen: list[list[_Sentence]] = [[] for _ in pairs]
    left = limits.max_quote_chars
    quoted: set[str] = set()
    for number, sentence in _ranked(question, pairs, limits.keep):
        text = pairs[number][0].text(sentence)
        if sentence.size <= left and text not in quoted:
            quoted.add(text)
            left -= sentence.size
            chosen[number].append(sentence)
    return chosen


def _ranked(
    question: str, pairs: Sequence[tuple[_Result, Sequence[ContextBlock]]], keep: float
) -> list[RankedSentence]:
    """Return the best sentence of each result, newest results first, and then what else is good
    enough, by its score beside that of the best.
    """
    results = [result for result, _ in pairs]
    total = sum(len(result.sentences) for result in results)
    length = sum(sentence.words for result in results for sentence in result.sentences) / (
        total or 1
    )
    weights = dict.fromkeys(words(question), QUESTION)
    best: list[RankedSentence] = []
    others: list[tuple[float, RankedSentence]] = []
    for number in reversed(range(len(pairs))):
        result, before = pairs[number]
        if not result.sentences:
            continue
        scores = result.scores(_query(weights, before, results, total), length)
        top = max(scores)
        first = scores.index(top)
        best.append((number, result.sentences[first]))
        others += [
            (score / top, (number, result.sentences[position]))
            for position, score in enumerate(scores)
            if position != first and score >= keep * top > 0
        ]
    others.sort(key=lambda sentence: -sentence[0])
    return [*best, *(position for _, position in others)]


def _query(
    weights: Mapping[str, float],
    before: Sequence[ContextBlock],
    results: Sequence[_Result],
    total: int,
) -> dict[str, float]:
    """Return the weight of each word of a query: how much it was asked for, and how rare it is."""
    weight = dict(weights)
    for kind, worth in (("think", THOUGHT), ("search", SEARCHED)):
        together = " ".join(block.text for block in before if block.kind == kind)
        for word in dict.fromkeys(words(together)):
            weight[word] = weight.get(word, 0.0) + worth
    return {word: worth * _rarity(word, results, total) for word, worth in weight.items()}


def _rarity(word: str, results: Sequence[_Result], total: int) -> float:
    holding = sum(len(result.holding.get(word, ())) for result in results)
    return math.log(1 + (total - holding + 0.5) / (holding + 0.5))


def _joined(result: _Result, chosen: Sequence[_Sentence]) -> Iterator[Quote]:
    """Yield the quotes of a result in its order, neighbours as one."""
    ordered = sorted(chosen, key=lambda sentence: (sentence.passage, sentence.position))
    start = 0
    for last, sentence in enumerate(ordered):
        if last + 1 < len(ordered) and _follows(sentence, ordered[last + 1]):
            continue
        source = result.passages[sentence.passage]
        yield Quote(source.text[ordered[start].start : sentence.end], source.title)
        start = last + 1


def _follows(sentence: _Sentence, after: _Sentence) -> bool:
    """Say whether a sentence is the next one, with no more between them than a space or two."""
    beside = after.passage == sentence.passage and after.position == sentence.position + 1
    return beside and after.start - sentence.end <= SPACES


def _condensed(thoughts: Sequence[str], limit: int) -> str:
    whole = "\n".join(thought.strip() for thought in thoughts)
    if len(whole) <= limit:
        return whole
    parts: list[str] = []
    for thought in reversed(thoughts):
        ends = list(sentences(thought))[-1:]
        for start, end in ends:
            last = thought[start:end][:limit]
            limit -= len(last) + 1
            parts.append(last)
        if limit <= 0:
            break
    return "\n".join(reversed(parts))
