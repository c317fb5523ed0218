"""A deterministic judge that compares words, for the demo and tests: no server, no model.

It understands no sentence, so a policy can be paid for nonsense: what it pays is measured in
docs/explanation/reward-hacking.md. For other data use a model as judge (`openai`).

It answers one question, in three forms: *is this statement written here?* For `quality` and
`presence` the statement is the criterion without its reporting phrase ("The response states that
…"), looked for in the candidate; for `support` it is the candidate, looked for in the context.

Both sides are cut into sentences and those into terms. A statement is found where, close together
in one sentence, its anchors (numbers, names and its last term, where English puts what is new) and
enough of its other terms stand, both sides deny or both assert, and names and numbers have the same
roles. Because everything must stand close together, a bag of the right words earns nothing; because
text is only ever compared, instructions in it ("score: 1") do nothing.

What it cannot judge, such as form, tone or a criterion that is not in English, gets None, never a
number. The policy can never bring about a None, neither by its text nor by the passages that it
cites: it would be a way to be excused. Details and limits: docs/reference/lexical-judge.md.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from hf_rlhf.contracts import Question, Verdict
from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.terms import (
    NEGATORS,
    STOPWORDS,
    Term,
    is_opposed,
    is_swapped,
    only_denies,
    read_terms,
)

_COMMON = STOPWORDS | NEGATORS
_TAG = re.compile(r"</?[A-Za-z][\w-]*(?:\s+[\w-]+\s*=[^<>]*)?\s*/?>")
_SENTENCE = re.compile(r"\n+|(?<!\b[A-Z]\.)(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<=[.!?])[\"')\]]*\s+")
# A match begins where white space does, or a long run of it would be read again from each place.
_CONJUNCTION = re.compile(
    r"(?<!\s)\s*+;\s*|,?(?<!\s)\s++(?:and|but|while|whereas)\s+", re.IGNORECASE
)
_REPORTING = re.compile(
    r"""^\s*(?:the\s+)?(?:(?:answer|response|report|text|candidate|it)\s+)?
    (?:(?:must|should|does|correctly|clearly|explicitly|also|wrongly|falsely)\s+)*
    (?:states?|mentions?|says?|notes?|names?|identif(?:y|ies)|includes?|provides?|explains?
    |describes?|discuss(?:es)?|lists?|gives?|reports?|claims?|asserts?|concludes?|specif(?:y|ies)
    |acknowledges?|refers?\ to|points?\ out)\b
    (?:\s+(?:that|how|why|the\s+fact\s+that))?\s+""",
    re.IGNORECASE | re.VERBOSE,
)
_ABOUT_THE_TEXT = re.compile(
    r"""^\s*(?:the\s+)?(?:(?:answer|response|report|text|candidate|it)\s+)?
    (?:does\ not|doesn't|is|are|has|fails?|omits?|avoids?|ignores?|repeats?|copies|invents?
    |(?:mis)?attributes?|confuses?|cites?|contradicts?|fabricates?|hallucinates?|keeps?|uses?
    |writes?|follows?|answers?|pads?|supports?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_REMARK = re.compile(
    r",?(?<!\s)\s*+\b(?:which|that|who)\s+(?:was|is|were|are)\s+(?:not|never|wrong|false|incorrect|off)\b.*$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Statement:
    """What is looked for: its terms, in order."""

    terms: tuple[Term, ...]
    denied: bool = False
    text: str = ""
    """As it was written, for the form of its verb and the relations of its values."""

    @property
    def words(self) -> frozenset[str]:
        """Every term, as compared."""
        return frozenset(term.text for term in self.terms)

    @property
    def anchors(self) -> frozenset[str]:
        """The terms without which nothing is found."""
        names = {term.text for term in self.terms if term.is_number or term.is_name}
        return frozenset(names | {self.terms[-1].text})


@dataclass
class LexicalJudge:
    """Judge by comparing words: for the demo and tests, and no substitute for a model.

    It gives no verdict (None) where it cannot judge. Method and limits:
    docs/reference/lexical-judge.md. Raises JudgeError for settings that cannot work.
    """

    full: float = 0.9
    """Share of a statement's terms that must occur for a score of 1.0."""
    partial: float = 0.75
    """Share of a statement's terms that must occur for a score of 0.5."""
    spread: float = 2.0
    """They must occur within a window of this many times the statement's number of terms."""
    _totals: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.partial <= self.full <= 1:
            raise JudgeError(
                f"lexical judge: 0 < partial <= full <= 1 is needed, "
                f"got partial {self.partial} and full {self.full}."
            )
        if not (math.isfinite(self.spread) and self.spread >= 1):
            raise JudgeError(f"lexical judge: spread must be at least 1, got {self.spread}.")
        self._totals = dict.fromkeys(("calls", "cached", "failed", "seconds"), 0.0)

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order."""
        started = perf_counter()
        verdicts = [self.answer(question) for question in questions]
        self._totals["calls"] += len(verdicts)
        self._totals["failed"] += sum(verdict.score is None for verdict in verdicts)
        self._totals["seconds"] += perf_counter() - started
        return verdicts

    def answer(self, question: Question) -> Verdict:
        """Answer one question: 0.0, 0.5, 1.0, or None for what words cannot tell."""
        if question.kind == "support":
            wanted, text, source = question.candidate, question.context, "passages"
        else:
            wanted, text, source = question.criterion, question.candidate, "answer"
            if refusal := _unjudgeable(wanted):
                return Verdict(None, refusal)
            wanted = _REMARK.sub("", _REPORTING.sub("", wanted, count=1))
            if not _reads_as_english(wanted):
                return Verdict(None, "Not judged: the lexical judge reads English only.")
        statements = _statements(wanted)
        if question.kind == "support" and (not statements or any(map(_asks, _sentences(wanted)))):
            return Verdict(0.0, "The claim says nothing.")
        if not statements:
            return Verdict(None, "Not judged: the criterion holds no words to look for.")
        sentences = _sentences(text)
        scores = [self._score(statement, sentences) for statement in statements]
        score = min(scores)
        if question.kind == "quality" and score and (rival := _rival(statements, sentences)):
            return Verdict(0.0, f"The answer also says otherwise: {rival!r}.")
        worst = " ".join(term.text for term in statements[scores.index(score)].terms)
        verb = {0.0: "not found", 0.5: "partly found"}.get(score, "found")
        return Verdict(score, f"'{worst}' was {verb} in the {source}.")

    def describe(self) -> Mapping[str, Any]:
        """Return the method and its thresholds."""
        return {
            "judge": "lexical",
            "model": None,
            "method": "word comparison; no paraphrase, no inference "
            "(hf_rlhf.rewards.judges.lexical)",
            "full": self.full,
            "partial": self.partial,
            "spread": self.spread,
        }

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction; `failed` counts what was not judged."""
        return dict(self._totals)

    async def ping(self) -> str:
        """Report that it is there."""
        return "The lexical judge is built in: no server, no model."

    def _score(self, statement: Statement, sentences: Sequence[str]) -> float:
        return max((self._score_in(statement, sentence) for sentence in sentences), default=0.0)

    def _score_in(self, statement: Statement, sentence: str) -> float:
        """Score the best stretch of the sentence that holds the statement's anchors."""
        if _asks(sentence):
            return 0.0
        terms, denied = read_terms(sentence, denies=statement.words)
        words = [term.text for term in terms]
        if not statement.anchors <= set(words):
            return 0.0
        if len(statement.words) > 1 and denied != statement.denied:
            return 0.0
        if is_opposed(statement.text, sentence):
            return 0.0
        width = math.ceil(self.spread * len(statement.words))
        coverage = 0.0
        for start in range(max(1, len(words) - width + 1)):
            stretch = set(words[start : start + width])
            share = len(statement.words & stretch) / len(statement.words)
            if statement.anchors <= stretch and share > coverage:
                if is_swapped(
                    statement.terms, statement.text, terms[start : start + width], sentence
                ):
                    continue
                coverage = share
        if coverage >= self.full:
            return 1.0
        return 0.5 if coverage >= self.partial else 0.0


def _unjudgeable(criterion: str) -> str:
    """Return why this criterion is not about what a text states, or an empty text."""
    terms, _ = read_terms(criterion)
    has_name = any(term.is_number or term.is_name for term in terms[1:])
    if _REPORTING.match(criterion) or (has_name and not _ABOUT_THE_TEXT.match(criterion)):
        return ""
    return "Not judged: the criterion is not about a statement, and words cannot tell form or tone."


def _reads_as_english(text: str) -> bool:
    """Return whether letters are Latin and, of eight words or more, one is a function word."""
    if not _is_latin(text):
        return False
    words = re.findall(r"[^\W\d_]+", text.casefold())
    return len(words) < 8 or any(word in _COMMON for word in words)


def _is_latin(text: str) -> bool:
    letters = [char for char in text if char.isalpha()]
    return sum("LATIN" in unicodedata.name(char, "") for char in letters) >= 0.8 * len(letters)


def _sentences(text: str) -> list[str]:
    """Cut at tags, lines and full stops; one that only denies ("False.") ends the one before."""
    sentences: list[str] = []
    for block in _TAG.split(text):
        begun = len(sentences)
        for part in _SENTENCE.split(block):
            if not part or not part.strip():
                continue
            if len(sentences) > begun and only_denies(part):
                sentences[-1] += " " + part
            else:
                sentences.append(part)
    return sentences


def _asks(sentence: str) -> bool:
    return sentence.rstrip("\"') ").endswith("?")


def _statements(text: str) -> list[Statement]:
    """Cut into statements at conjunctions; a part without a subject inherits the one before."""
    statements = []
    for sentence in _sentences(text):
        parts = [(*read_terms(part), part) for part in _CONJUNCTION.split(sentence)]
        parts = [part for part in parts if part[0]]
        if parts and len(parts[0][0]) < 2:  # "Ada and Bo lead Alder": the cut would lose the verb
            parts = [(*read_terms(sentence), sentence)]
        before: tuple[Term, ...] = ()
        for terms, denied, written in parts:
            if len(terms) == 1:
                terms = (*before[:-1], *terms)
            elif before and not any(term.is_name for term in terms[:-1]):
                terms = (before[0], *terms)
            statements.append(Statement(terms, denied, written))
            before = terms
    return statements


def _rival(statements: Sequence[Statement], sentences: Sequence[str]) -> str:
    """Return a sentence that gives another value in the place of a statement's last term.

    For a number, another with as many digits, beside all the other terms; for a word, a sentence
    that differs in nothing else.
    """
    for statement in statements:
        last, rest = statement.terms[-1], statement.words - {statement.terms[-1].text}
        if len(rest) < 2:
            continue
        for sentence in sentences:
            terms, denied = read_terms(sentence, denies=statement.words)
            extra = [term for term in terms if term.text not in statement.words]
            if denied or not rest <= {term.text for term in terms}:
                continue
            if last.is_number and any(
                term.is_number and len(term.text) == len(last.text) for term in extra
            ):
                return sentence.strip()
            if not last.is_number and len(extra) == 1 and last not in terms:
                return sentence.strip()
    return ""
