"""Similarity of texts in any script, from 0 to 1. Pure functions."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rapidfuzz.distance import LCSseq

from hf_rlhf_rollouts import Search

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff])"
)
"""Thai, Lao, Burmese, Khmer, kana and Han, which have no spaces between words."""


def normalise(text: str) -> str:
    """Normalise text as SQuAD does: lower case, no punctuation or articles, single spaces.

    After Rajpurkar et al. 2016 (https://arxiv.org/abs/1606.05250), whose script handles ASCII only;
    on ASCII text with a word other than articles both agree. Here letters are folded by Unicode
    (NFKC and casefold: "ß" is "ss", "①" is "1"). Punctuation of any script and invisible characters
    (direction marks, zero-width spaces) are removed. A text that would become empty ("The", "+")
    stays unchanged, so that different texts of this kind stay distinct.
    """
    folded = _folded(text)
    bare = "".join("" if _is_punctuation(char) else char for char in folded)
    rest = " ".join(_ARTICLES.sub(" ", bare).split())
    return rest or " ".join(folded.split())


def exact_match(text: str, expected: str) -> float:
    """Return 1.0 if both are equal after `normalise`, else 0.0."""
    return float(normalise(text) == normalise(expected))


def token_f1(text: str, expected: str) -> float:
    """Return F1 of the bags of words of both, after `normalise`.

    Words are split at spaces; in scripts without spaces, each character is a word, as in MLQA for
    Chinese (Lewis et al. 2020, https://arxiv.org/abs/1910.07475). Two empty texts are equal.
    """
    return _f1(_split(normalise(text)), _split(normalise(expected)))


def rouge_l(text: str, expected: str) -> float:
    """Return the F-measure of ROUGE-L: of the longest common subsequence of words (Lin 2004).

    Words are runs of letters, marks and digits of any script, folded as in `normalise`, and single
    characters in scripts without spaces. On ASCII text it equals rougeL of the package rouge-score
    without a stemmer, whose words are runs of a-z and 0-9.
    """
    actual, wanted = words(text), words(expected)
    if not actual or not wanted:
        return 0.0
    common = LCSseq.similarity(actual, wanted)
    return 2 * common / (len(actual) + len(wanted))


def recall(available: Iterable[str], wanted: Iterable[str]) -> float | None:
    """Return the share of the words of `wanted` in `available`; None if there is no word.

    A repeated word must occur as often.
    """
    needed = Counter(word for text in wanted for word in words(text))
    present = Counter(word for text in available for word in words(text))
    return (needed & present).total() / needed.total() if needed else None


def match_searches(actual: Sequence[Search], expected: Sequence[Search]) -> float:
    """Return the similarity of two sets of parallel searches: for two queries it is `token_f1`.

    Queries of different tools score 0. Queries are paired greedily, the most similar first, and the
    sum over pairs is divided as in F1: an extra query costs as much as a missing query.
    """
    pairs = sorted(
        (-token_f1(query.query, other.query) if query.tool == other.tool else 0.0, i, j)
        for i, query in enumerate(actual)
        for j, other in enumerate(expected)
    )
    rows, columns, total = set[int](), set[int](), 0.0
    for negative, i, j in pairs:
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            total -= negative
    both = len(actual) + len(expected)
    return 2 * total / both if both else 0.0


def words(text: str) -> list[str]:
    """Return the words of a text, folded."""
    spaced = "".join(char if _is_word_character(char) else " " for char in _folded(text))
    return _split(spaced)


def _f1(bag: Sequence[str], other: Sequence[str]) -> float:
    if not bag or not other:
        return float(not bag and not other)
    common = (Counter(bag) & Counter(other)).total()
    return 2 * common / (len(bag) + len(other))


def _split(text: str) -> list[str]:
    return _UNSPACED.sub(r" \1 ", text).split()


def _folded(text: str) -> str:
    # Twice, because casefold can return what NFKC would compose.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=8192)
def _is_punctuation(char: str) -> bool:
    if char.isspace():
        return False
    return char in _ASCII_PUNCTUATION or unicodedata.category(char)[0] in "PC"


@lru_cache(maxsize=8192)
def _is_word_character(char: str) -> bool:
    return unicodedata.category(char)[0] in "LMN"
