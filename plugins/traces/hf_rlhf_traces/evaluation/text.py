"""How alike two texts are. Pure functions, of any script; all values are from 0 to 1."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rapidfuzz.distance import Indel, LCSseq

from hf_rlhf_traces.trace import Search

Alike = Callable[[str, str], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff])"
)
"""Thai, Lao, Burmese, Khmer, kana and Han, which put no space between words."""


def normalise(text: str) -> str:
    """Return text as SQuAD compares answers: lower case, no punctuation, no articles, one space.

    After Rajpurkar et al. 2016 (https://arxiv.org/abs/1606.05250), whose script knows ASCII alone.
    Other than there: letters are folded by Unicode (NFKC and casefold, so "ß" is "ss" and "①" is
    "1"); punctuation of any script goes, and with it control and format characters, which nobody
    sees (marks of direction, spaces of no width); a text of which nothing would be left ("The",
    "+") stays as it is, so that it is not the same as any other of that kind. On ASCII text with
    a word beside the articles it is the same.
    """
    folded = _folded(text)
    bare = "".join("" if _is_punctuation(char) else char for char in folded)
    rest = " ".join(_ARTICLES.sub(" ", bare).split())
    return rest or " ".join(folded.split())


def exact_match(text: str, expected: str) -> float:
    """Return 1.0 if both are the same after `normalise`, else 0.0."""
    return float(normalise(text) == normalise(expected))


def token_f1(text: str, expected: str) -> float:
    """Return F1 of the bags of words of both, after `normalise`.

    Words are parted at spaces; in scripts that have none between words, each character is one, as
    MLQA does for Chinese (Lewis et al. 2020, https://arxiv.org/abs/1910.07475). Two empty texts
    are the same.
    """
    return _f1(_parted(normalise(text)), _parted(normalise(expected)))


def rouge_l(text: str, expected: str) -> float:
    """Return the F-measure of ROUGE-L: of the longest common subsequence of words (Lin 2004).

    Words are runs of letters, marks and digits of any script, folded as in `normalise`; of scripts
    without spaces, characters. On ASCII text it is what the package rouge-score gives for rougeL
    without a stemmer, whose words are runs of a-z and 0-9: it sees nothing of other scripts.
    """
    actual, wanted = words(text), words(expected)
    if not actual or not wanted:
        return 0.0
    common = LCSseq.similarity(actual, wanted)
    return 2 * common / (len(actual) + len(wanted))


def recall(available: Iterable[str], wanted: Iterable[str]) -> float | None:
    """Return the share of the words of `wanted` that are among those of `found`; None of no word.

    A word that is wanted twice has to be found twice.
    """
    want = Counter(word for text in wanted for word in words(text))
    have = Counter(word for text in available for word in words(text))
    return (want & have).total() / want.total() if want else None


def searches_alike(actual: Sequence[Search], expected: Sequence[Search]) -> tuple[float, float]:
    """Return how alike two sets of parallel searches are: by words, and by characters.

    By words it is `token_f1` of two queries, by characters the normalised indel similarity of both
    after `normalise`; queries of different tools have nothing in common. Each query is paired with
    one of the other set at most, the most alike first, and the sum over pairs is put in relation
    to both numbers, as F1 does: a query too many costs as much as one too few.
    """
    return _matched(actual, expected, token_f1), _matched(actual, expected, _characters)


def words(text: str) -> list[str]:
    """Return the words of a text, folded."""
    spaced = "".join(char if _is_of_word(char) else " " for char in _folded(text))
    return _parted(spaced)


def _matched(actual: Sequence[Search], expected: Sequence[Search], alike: Alike) -> float:
    pairs = sorted(
        (-_queries_alike(query, other, alike), i, j)
        for i, query in enumerate(actual)
        for j, other in enumerate(expected)
    )
    left, right, total = set(range(len(actual))), set(range(len(expected))), 0.0
    for negative, i, j in pairs:
        if i in left and j in right:
            left.remove(i)
            right.remove(j)
            total -= negative
    both = len(actual) + len(expected)
    return 2 * total / both if both else 0.0


def _queries_alike(query: Search, other: Search, alike: Alike) -> float:
    if query.tool != other.tool:
        return 0.0
    return alike(query.query, other.query)


def _characters(text: str, expected: str) -> float:
    return float(Indel.normalized_similarity(normalise(text), normalise(expected)))


def _f1(bag: Sequence[str], other: Sequence[str]) -> float:
    if not bag or not other:
        return float(not bag and not other)
    common = (Counter(bag) & Counter(other)).total()
    return 2 * common / (len(bag) + len(other))


def _parted(text: str) -> list[str]:
    return _UNSPACED.sub(r" \1 ", text).split()


def _folded(text: str) -> str:
    # Twice, since casefold can give what NFKC would compose.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=8192)
def _is_punctuation(char: str) -> bool:
    if char.isspace():
        return False
    return char in _ASCII_PUNCTUATION or unicodedata.category(char)[0] in "PC"


@lru_cache(maxsize=8192)
def _is_of_word(char: str) -> bool:
    return unicodedata.category(char)[0] in "LMN"
