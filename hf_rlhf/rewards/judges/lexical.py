"""A deterministic judge that matches words, for the demo and tests: no server, no model.

It does not understand sentences, so a policy can earn reward with nonsense, as measured in
docs/explanation/reward-hacking.md. For other data use a model as judge (`openai`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_rlhf.contracts import Question, Verdict

_STOPWORDS = """a an the this that these those it its he she they him his her their we our you
    your i who whom which what there here and or but so as than then also too very both each of in
    on at by for from to into with about between during is are was were be been being am
    has have had do does did can could may might will would shall should must longer s"""
STOPWORDS = frozenset(_STOPWORDS.split())
_NEGATORS = frozenset(("not", "no", "never", "without", "neither", "nor", "whether", "if", "false"))
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_SENTENCE = re.compile(r"</?\w[^<>]*>|\n+|(?<!\b[A-Z]\.)(?<=[.!?])[\"')\]]*\s+")
_CONJUNCTION = re.compile(r"(?<!\s)\s*+;\s*|(?<!\s)\s++(?:and|but)\s+")
_REPORTING = re.compile(
    r"\s*(?:the )?(?:(?:answer|response|report) )?(?:\w+ly )?"
    r"(?:states|says|mentions|names|gives|reports|claims)(?: that)? ",
    re.IGNORECASE,
)
_REMARK = re.compile(r", which (?:was|is) (?:not|never|wrong|false)\b.*", re.DOTALL)
_SPREAD = 2
"""A statement's words must occur within this multiple of their number."""


@dataclass
class LexicalJudge:
    """Judge by matching words: for the demo and tests, and no substitute for a model.

    A statement matches if all of its words occur close together in a sentence, and both assert or
    both deny. Criteria other than `States that …` get None. Method and limits:
    docs/reference/lexical-judge.md.
    """

    _totals: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._totals = dict.fromkeys(("calls", "cached", "failed"), 0.0)

    async def judge(self, questions: Sequence[Question]) -> list[Verdict]:
        """Answer every question, in order."""
        verdicts = [self.answer(question) for question in questions]
        self._totals["calls"] += len(verdicts)
        self._totals["failed"] += sum(verdict.score is None for verdict in verdicts)
        return verdicts

    def answer(self, question: Question) -> Verdict:
        """Answer a question: 0.0, 1.0, or None for a criterion that is not a statement."""
        if question.kind == "support":
            statements = list(_statements(question.candidate))
            if not statements or question.candidate.rstrip().endswith("?"):
                return Verdict(0.0, "The claim says nothing.")
            text = question.context
        else:
            reporting = _REPORTING.match(question.criterion)
            wanted = question.criterion[reporting.end() :] if reporting else ""
            statements, text = list(_statements(_REMARK.sub("", wanted))), question.candidate
            if not statements:
                return Verdict(None, "Not judged: the criterion does not begin with `States that`.")
        sentences = [_words(each) for each in _sentences(text) if not each.rstrip().endswith("?")]
        for statement in statements:
            if not any(_is_found(statement, sentence) for sentence in sentences):
                return Verdict(0.0, f"'{' '.join(statement)}' was not found.")
        return Verdict(1.0, "All of it was found.")

    def describe(self) -> Mapping[str, Any]:
        """Return the method."""
        method = "word search; no paraphrase, no inference (hf_rlhf.rewards.judges.lexical)"
        return {"judge": "lexical", "model": None, "method": method}

    def usage(self) -> Mapping[str, float]:
        """Return totals since construction; `failed` counts unjudged questions."""
        return dict(self._totals)

    async def ping(self) -> str:
        """Return a constant line."""
        return "The lexical judge is built in: no server, no model."


def _sentences(text: str) -> list[str]:
    return [part for part in _SENTENCE.split(text) if part and part.strip()]


def _words(text: str) -> list[str]:
    """Return the significant words, including negators, in order."""
    plain = text.casefold().replace("’", "'").replace("n't", " not").replace("cannot", "not")
    words = (word.replace(",", "") for word in _WORD.findall(plain) if word not in STOPWORDS)
    return [word[:-1] if len(word) > 3 and word[-1] == "s" else word for word in words]


def _statements(text: str) -> Iterator[list[str]]:
    """Split at conjunctions; a part that does not begin with a name inherits the first word."""
    for sentence in _sentences(text):
        parts = [part for part in _CONJUNCTION.split(sentence) if _words(part)]
        if parts and len(_words(parts[0])) == 1:  # "Ada and Bo lead Alder"
            parts = [sentence]
        before: list[str] = []
        for part in parts:
            words = _words(part)
            if before and len(words) == 1:
                words = [*before[:-1], *words]
            elif before and not part.lstrip()[0].isupper():
                words = [before[0], *words]
            yield words
            before = words


def _is_found(statement: Sequence[str], sentence: Sequence[str]) -> bool:
    wanted = set(statement) - _NEGATORS
    if len(wanted) > 1 and bool(_NEGATORS & set(statement)) != bool(_NEGATORS & set(sentence)):
        return False
    width = _SPREAD * len(wanted)
    starts = range(max(1, len(sentence) - width + 1))
    return wanted <= set(sentence) and any(
        wanted <= set(sentence[start : start + width]) for start in starts
    )
