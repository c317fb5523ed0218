"""Traces that an evaluation file gives away: their question, or 13 words in a row of it.

By n-grams as GPT-3 did (Brown et al. 2020, https://arxiv.org/abs/2005.14165, appendix C): words in
lower case without punctuation, N = 13, and an n-gram that more than 10 rows share is their
wording, not their content. What is shorter than 13 words is compared whole, as all questions are.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hf_rlhf.data import Row, read_rows
from hf_rlhf.errors import DataError
from hf_rlhf_traces.trace import Answer, Trace, question_key

WORDS = 13
COMMON = 10
"""An n-gram in more rows than this is not looked for."""
QUESTIONS = ("question", "problem", "query", "prompt", "input", "instruction", "messages")
ANSWERS = ("answer", "answers", "expected_answer", "golden_answers", "solution", "completion")
# Scripts without spaces: each character counts as a word.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_SHOWN = 80


@dataclass(frozen=True)
class EvaluationSet:
    """Questions and n-grams of an evaluation file, and the place of each."""

    source: str
    rows: int
    questions: Mapping[bytes, str]
    """Hash of a question's words -> its place."""
    grams: Mapping[bytes, str]
    """Hash of 13 words -> the first place where they stand."""

    def report(self) -> dict[str, Any]:
        """Return what was looked for, for records and cards; without a path, which tells nobody."""
        return {
            "file": Path(self.source).name,
            "rows": self.rows,
            "questions": len(self.questions),
            "ngrams": len(self.grams),
            "words": WORDS,
        }

    def match(self, trace: Trace) -> str | None:
        """Say by what a trace is given away, and by which evaluation row; None if it is not."""
        if (where := self.questions.get(_key(trace.question))) is not None:
            return f"the question is that of {where}"
        answers = [step.content for step in trace.steps if isinstance(step, Answer)]
        for what, text in (
            ("question", trace.question),
            *(("answer", answer) for answer in answers),
        ):
            for gram, words in _grams(text):
                if (where := self.grams.get(gram)) is not None:
                    quoted = " ".join(words)[:_SHOWN]
                    return f"{WORDS} words of the {what} stand in {where}: {quoted!r}"
        return None


@lru_cache(maxsize=2)
def evaluation_set(source: str) -> EvaluationSet:
    """Read an evaluation file, folder or Hub dataset, all its splits.

    A question stands in one of the columns `QUESTIONS`, answers in `ANSWERS`. Raises DataError
    for a file that cannot be read, or a row without a question.
    """
    questions: dict[bytes, str] = {}
    grams: dict[bytes, str] = {}
    shared: Counter[bytes] = Counter()
    count = 0
    for rows in read_rows(source).splits.values():
        for row in rows:
            count += 1
            question = _question(row)
            questions.setdefault(_key(question), row.where)
            row_grams = {gram for text in (question, *_answers(row)) for gram, _ in _grams(text)}
            shared.update(row_grams)
            for gram in row_grams:
                grams.setdefault(gram, row.where)
    rare = {gram: where for gram, where in grams.items() if shared[gram] <= COMMON}
    return EvaluationSet(source, count, questions, rare)


def _question(row: Row) -> str:
    for name in QUESTIONS:
        value = row.values.get(name)
        if isinstance(value, list):
            questions = [turn.get("content") for turn in value if _is_users(turn)]
            value = questions[-1] if questions else None
        if isinstance(value, str) and value.strip():
            return value
    raise DataError(
        f"{row.where}: has no question. Expected text, or messages, in one of the columns "
        f"{', '.join(QUESTIONS)}; it has {', '.join(row.values)}."
    )


def _is_users(turn: Any) -> bool:
    return isinstance(turn, Mapping) and turn.get("role") == "user"


def _answers(row: Row) -> Iterator[str]:
    for name in ANSWERS:
        value = row.values.get(name)
        many: Iterable[Any] = value if isinstance(value, list) else (value,)
        yield from (text for text in many if isinstance(text, str))


def _key(question: str) -> bytes:
    words = _words(question)
    # A question of nothing but signs has no words, and is still one.
    return _hash(words or [question_key(question)])


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _hash(words: Sequence[str]) -> bytes:
    return blake2b(" ".join(words).encode("utf-8", "replace"), digest_size=8).digest()


def _grams(text: str) -> Iterator[tuple[bytes, list[str]]]:
    words = _words(text)
    for start in range(len(words) - WORDS + 1):
        some = words[start : start + WORDS]
        yield _hash(some), some
