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
from hf_rlhf_traces.summaries.context import Passage, Seen, blocks, passages
from hf_rlhf_traces.summaries.summary import Quote, Summary
from hf_rlhf_traces.summaries.words import sentences, words

K1, B = 1.2, 0.75
"""How fast repeats saturate, and how much length counts: Lucene's defaults."""
ASKED, THOUGHT, SEARCHED = 1.0, 1.0, 3.0
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
    place: int
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
        for number, one in enumerate(parts):
            for place, (start, end) in enumerate(sentences(one.text)):
                inside = set(words(one.text[start:end]))
                for word in inside:
                    holding.setdefault(word, []).append(len(cut))
                cut.append(_Sentence(number, place, start, end, len(inside)))
        return cls(parts, cut, holding)

    def text(self, sentence: _Sentence) -> str:
        return self.passages[sentence.passage].text[sentence.start : sentence.end]

    def scores(self, query: Mapping[str, float], length: float) -> list[float]:
        """Score each sentence; `length` is how many different words one has on average."""
        worth = [0.0] * len(self.sentences)
        for word, weight in query.items():
            for place in self.holding.get(word, ()):
                worth[place] += weight
        return [
            one / (1 + K1 * (1 - B + B * sentence.words / length)) if one else 0.0
            for one, sentence in zip(worth, self.sentences, strict=True)
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
        seen = blocks(row["prompt"], self.form)
        thoughts = [one.text for one in seen if one.kind == "think"]
        # Where the thoughts are not known, what was searched for tells most of what they were.
        told = thoughts or [one.text for one in seen if one.kind == "search"]
        quotes = tuple(self._quotes(row["question"], seen))
        return Summary(row["question"], _condensed(told, self.limits.max_reasoning_chars), quotes)

    def _quotes(self, question: str, seen: Sequence[Seen]) -> Iterator[Quote]:
        found = [(self._result(one), before) for one, before in _results(seen)]
        chosen = _choose(question, found, self.limits)
        for (result, _), places in zip(found, chosen, strict=True):
            yield from _joined(result, places)

    def _result(self, text: str) -> _Result:
        if text not in self._results:
            self._results[text] = _Result.of(text, self.form)
        return self._results[text]


def _results(seen: Sequence[Seen]) -> Iterator[tuple[str, Sequence[Seen]]]:
    """Yield each result and what was thought and searched for right before it."""
    said: list[Seen] = []
    after_result = False
    for one in seen:
        if one.kind == "information":
            yield one.text, tuple(said)
        elif after_result:
            said = [one]
        else:
            said.append(one)
        after_result = one.kind == "information"


Place = tuple[int, _Sentence]
"""The number of a result, and a sentence of it."""


def _choose(
    question: str, found: Sequence[tuple[_Result, Sequence[Seen]]], limits: Limits
) -> list[list[_Sentence]]:
    """Return the sentences of each result that are quoted: each once, as many as there is room."""
    chosen: list[list[_Sentence]] = [[] for _ in found]
    left = limits.max_quote_chars
    told: set[str] = set()
    for number, one in _ranked(question, found, limits.keep):
        text = found[number][0].text(one)
        if one.size <= left and text not in told:
            told.add(text)
            left -= one.size
            chosen[number].append(one)
    return chosen


def _ranked(
    question: str, found: Sequence[tuple[_Result, Sequence[Seen]]], keep: float
) -> list[Place]:
    """Return the best sentence of each result, newest results first, and then what else is good
    enough, by its score beside that of the best.
    """
    results = [result for result, _ in found]
    total = sum(len(result.sentences) for result in results)
    length = sum(one.words for result in results for one in result.sentences) / (total or 1)
    asked = dict.fromkeys(words(question), ASKED)
    best: list[Place] = []
    others: list[tuple[float, Place]] = []
    for number in reversed(range(len(found))):
        result, said = found[number]
        if not result.sentences:
            continue
        scores = result.scores(_query(asked, said, results, total), length)
        top = max(scores)
        first = scores.index(top)
        best.append((number, result.sentences[first]))
        others += [
            (score / top, (number, result.sentences[place]))
            for place, score in enumerate(scores)
            if place != first and score >= keep * top > 0
        ]
    others.sort(key=lambda one: -one[0])
    return [*best, *(place for _, place in others)]


def _query(
    asked: Mapping[str, float], said: Sequence[Seen], results: Sequence[_Result], total: int
) -> dict[str, float]:
    """Return the weight of each word of a query: how much it was asked for, and how rare it is."""
    weight = dict(asked)
    for kind, worth in (("think", THOUGHT), ("search", SEARCHED)):
        together = " ".join(one.text for one in said if one.kind == kind)
        for word in dict.fromkeys(words(together)):
            weight[word] = weight.get(word, 0.0) + worth
    return {word: worth * _rarity(word, results, total) for word, worth in weight.items()}


def _rarity(word: str, results: Sequence[_Result], total: int) -> float:
    holding = sum(len(result.holding.get(word, ())) for result in results)
    return math.log(1 + (total - holding + 0.5) / (holding + 0.5))


def _joined(result: _Result, chosen: Sequence[_Sentence]) -> Iterator[Quote]:
    """Yield the quotes of a result in its order, neighbours as one."""
    ordered = sorted(chosen, key=lambda one: (one.passage, one.place))
    start = 0
    for last, one in enumerate(ordered):
        if last + 1 < len(ordered) and _follows(one, ordered[last + 1]):
            continue
        source = result.passages[one.passage]
        yield Quote(source.text[ordered[start].start : one.end], source.title)
        start = last + 1


def _follows(one: _Sentence, after: _Sentence) -> bool:
    """Say whether a sentence is the next one, with no more between them than a space or two."""
    beside = after.passage == one.passage and after.place == one.place + 1
    return beside and after.start - one.end <= SPACES


def _condensed(thoughts: Sequence[str], limit: int) -> str:
    whole = "\n".join(thought.strip() for thought in thoughts)
    if len(whole) <= limit:
        return whole
    kept: list[str] = []
    for thought in reversed(thoughts):
        ends = list(sentences(thought))[-1:]
        for start, end in ends:
            last = thought[start:end][:limit]
            limit -= len(last) + 1
            kept.append(last)
        if limit <= 0:
            break
    return "\n".join(reversed(kept))
