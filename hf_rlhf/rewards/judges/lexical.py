"""A deterministic judge that compares words: no server, no model, no network.

It answers one question, in three guises: *is this statement written here?*

* `quality`, `presence`: the statement is the criterion without its reporting phrase ("The response
  states that …", "Mentions …"), and it is looked for in the candidate.
* `support`: the statement is the candidate, and it is looked for in the passages of the context.

How. Both sides lose their markup tags, are cut into sentences (a tag or a line break also cuts)
and then into terms: words without function words, plurals folded, `1,925` read as `1925`. A
statement is found in a sentence when, within `spread` times as many terms as it has itself,

* its *anchors* stand: every number, every capitalised word, and its last term, where English puts
  what is new;
* its coverage, the share of its terms that stand, reaches `full` (score 1.0) or `partial` (0.5);
* both sides deny or both assert; a denied match scores 0, and so does a question, or a clause
  with "whether" or "if";
* names and numbers have the same roles: "Ann hired Bob" is not found in "Bob hired Ann", but in
  "Bob was hired by Ann", and "over 900" not in "under 900", nor "from Oslo" in "to Oslo".

A compound statement ("Alder was founded in 1925 and is led by Ada") is cut at its conjunctions,
each part inherits the subject, and the worst part decides. For `quality`, a candidate that also
gives another value in the same place ("… in 1925. … in 1930.") scores 0: it asserts both.

Because everything must stand close together in one sentence, a bag of the right words earns
nothing; because text is only ever compared, instructions in it ("score: 1") do nothing.

What it cannot judge: paraphrase, inference, arithmetic, synonyms, number words, tone, structure,
length. Negation is crude: "not", "never", "it is a myth that" and their like immediately before a
matched term, or at the end ("…, false as that is"). Roles are compared only where the words are
otherwise the same. A short list of alternatives in one sentence passes, too. What it
knows that it cannot judge (a criterion about form, or not in English) gets None, never a number.
The policy can never bring about a None, neither by what it writes nor by which passages it cites:
it would be a way to be excused. Where these are not English, only equal words are found in them.
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
_CONJUNCTION = re.compile(r"\s*;\s*|,?\s+(?:and|but|while|whereas)\s+", re.IGNORECASE)
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
    r",?\s*\b(?:which|that|who)\s+(?:was|is|were|are)\s+(?:not|never|wrong|false|incorrect|off)\b.*$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Statement:
    """What is looked for: its terms in order, and the ones that must stand."""

    terms: tuple[Term, ...]
    denied: bool = False
    text: str = ""
    """As it was written, where the form of its verb and the relations of its values are read."""

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
    """Judge by comparing words: no model, no server, the same verdict every time.

    A stand-in where no model can be asked: it gives no verdict (None) on what it knows that it
    cannot judge. What it compares, and its limits: docs/reference/lexical-judge.md. Raises
    JudgeError for settings that cannot work.
    """

    full: float = 0.9
    """Share of a statement's terms that must stand for 1.0."""
    partial: float = 0.75
    """Share of a statement's terms that must stand for 0.5."""
    spread: float = 2.0
    """Within how many times the statement's own number of terms they must stand together."""
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
            sought, text, where = question.candidate, question.context, "passages"
        else:
            sought, text, where = question.criterion, question.candidate, "answer"
            if refusal := _unjudgeable(sought):
                return Verdict(None, refusal)
            sought = _REMARK.sub("", _REPORTING.sub("", sought, count=1))
            if not _reads_as_english(sought):
                return Verdict(None, "Not judged: the lexical judge reads English only.")
        statements = _statements(sought)
        if question.kind == "support" and (not statements or any(map(_asks, _sentences(sought)))):
            return Verdict(0.0, "The claim says nothing.")
        if not statements:
            return Verdict(None, "Not judged: the criterion holds no words to look for.")
        sentences = _sentences(text)
        scores = [self._found(statement, sentences) for statement in statements]
        score = min(scores)
        if question.kind == "quality" and score and (rival := _rival(statements, sentences)):
            return Verdict(0.0, f"The answer also says otherwise: {rival!r}.")
        worst = " ".join(term.text for term in statements[scores.index(score)].terms)
        verb = {0.0: "not found", 0.5: "partly found"}.get(score, "found")
        return Verdict(score, f"'{worst}' was {verb} in the {where}.")

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
        """Say that it is there."""
        return "The lexical judge is built in: no server, no model."

    def _found(self, statement: Statement, sentences: Sequence[str]) -> float:
        return max((self._found_in(statement, sentence) for sentence in sentences), default=0.0)

    def _found_in(self, statement: Statement, sentence: str) -> float:
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
    """Say why this criterion is not about what a text states, or return nothing."""
    terms, _ = read_terms(criterion)
    has_name = any(term.is_number or term.is_name for term in terms[1:])
    if _REPORTING.match(criterion) or (has_name and not _ABOUT_THE_TEXT.match(criterion)):
        return ""
    return "Not judged: the criterion is not about a statement, and words cannot tell form or tone."


def _reads_as_english(text: str) -> bool:
    """Tell whether letters are Latin and, in eight words or more, some are function words."""
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
