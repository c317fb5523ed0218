"""Candidate signals for orders of the world `tastes`: possible signs of a good order."""

from collections.abc import Sequence
from typing import Any

from hf_rlhf.data import text_of
from hf_rlhf_worlds.tastes import Taste


def liked(completions: Sequence[Any], taste: Sequence[str], **_: Any) -> list[float]:
    """Return how many of the three liked words occur."""
    return [float(len(_liked(wanted) & set(_words(c)))) for c, wanted in _rows(completions, taste)]


def mentions(completions: Sequence[Any], taste: Sequence[str], **_: Any) -> list[float]:
    """Return the number of liked words, repetitions included."""
    return [
        float(sum(word in _liked(wanted) for word in _words(c)))
        for c, wanted in _rows(completions, taste)
    ]


def spared(completions: Sequence[Any], taste: Sequence[str], **_: Any) -> list[float]:
    """Return 1.0 unless the hated word occurs."""
    return [float(wanted.hated not in _words(c)) for c, wanted in _rows(completions, taste)]


def length(completions: Sequence[Any], **_: Any) -> list[float]:
    """Return the number of words."""
    return [float(len(_words(completion))) for completion in completions]


def _rows(completions: Sequence[Any], taste: Sequence[str]) -> list[tuple[Any, Taste]]:
    parsed = map(Taste.parse, taste)
    return [(c, wanted) for c, wanted in zip(completions, parsed, strict=True) if wanted]


def _liked(taste: Taste) -> set[str]:
    return {*taste.adjectives, taste.noun}


def _words(completion: Any) -> list[str]:
    return text_of(completion).split()
