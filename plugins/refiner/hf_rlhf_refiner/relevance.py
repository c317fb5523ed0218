"""Rank texts by word overlap with a question, and split them into passages."""

import math
import re
from collections import Counter
from collections.abc import Sequence

K1, B = 1.2, 0.75
"""Lucene's defaults for the saturation of repeated words and for length normalisation."""

_BREAKS = (("\n\n", r"\n\s*\n"), ("\n", r"\n"), (" ", r"(?<=[.!?])\s+"), (" ", r"\s+"))
"""Joining and splitting strings for paragraphs, lines, sentences and words."""


def words(text: str) -> list[str]:
    """Return the words and numbers of `text`, case folded."""
    return re.findall(r"\w+", text.casefold())


def bm25(query: str, documents: Sequence[str]) -> list[float]:
    """Score each document for `query`: Okapi BM25 (Robertson & Zaragoza 2009) as Lucene has it.

    The documents themselves are the collection that word frequencies come from. Scores are >= 0
    and comparable only with each other; a word of the query counts once.
    """
    counts = [Counter(words(document)) for document in documents]
    lengths = [count.total() for count in counts]
    mean_length = (sum(lengths) / len(lengths) if lengths else 0) or 1
    scores = [0.0] * len(counts)
    for word in dict.fromkeys(words(query)):
        holding = sum(word in count for count in counts)
        rarity = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5))
        for index, count in enumerate(counts):
            if repeats := count[word]:
                norm = K1 * (1 - B + B * lengths[index] / mean_length)
                scores[index] += rarity * repeats / (repeats + norm)
    return scores


def most_relevant_first(query: str, documents: Sequence[str]) -> list[int]:
    """Return the indices of `documents` by falling score; ties keep their order."""
    scores = bm25(query, documents)
    return sorted(range(len(documents)), key=lambda index: -scores[index])


def passages(text: str, longest: int) -> list[str]:
    """Split `text` into passages of at most `longest` characters, in order, no word lost.

    Cuts fall between paragraphs if possible, else between lines, sentences or words; only a word
    longer than `longest` is cut itself. Neighbours are joined while they fit.
    """
    return _parted(text, longest, 0)


def _parted(text: str, longest: int, level: int) -> list[str]:
    text = text.strip()
    if len(text) <= longest:
        return [text] if text else []
    if level == len(_BREAKS):
        return [text[start : start + longest] for start in range(0, len(text), longest)]
    joint, pattern = _BREAKS[level]
    joined: list[str] = []
    for part in re.split(pattern, text):
        for piece in _parted(part, longest, level + 1):
            if joined and len(joined[-1]) + len(joint) + len(piece) <= longest:
                joined[-1] += joint + piece
            else:
                joined.append(piece)
    return joined
