"""What the wording of a claim shows without a judge: copies, repetitions, hedges, advice."""

from collections.abc import Sequence

from hf_rlhf_roles.insights import STOP, Claim, words_of

_RUN = 4
"""Words in a row that count as taken over."""
_COPIED = 0.85
"""Share of a claim's words that may not stand in such runs of the evidence."""
_NEW = 0.25
"""Share of new words up to which a claim on the same evidence says the same again."""
_HEDGE_WORDS = "may might could possibly perhaps maybe probably seemingly apparently"
_HEDGES = frozenset(_HEDGE_WORDS.split())
_ADVICE_WORDS = "should shall ought recommend recommends recommended advise advises advised"
_ADVICE = frozenset(_ADVICE_WORDS.split())

Run = tuple[str, ...]


def runs_of(passages: Sequence[str]) -> frozenset[Run]:
    """Return every run of words of the passages that a copy of them would have."""
    return frozenset(run for passage in passages for run in _runs(words_of(passage)))


def is_copy(claim: Claim, runs: frozenset[Run]) -> bool:
    """Tell whether a claim is put together of runs of the evidence, but for a few words.

    Up to 4 words it cannot be told from one.
    """
    words = claim.words
    taken = {
        place
        for start, run in enumerate(_runs(words))
        if run in runs
        for place in range(start, start + _RUN)
    }
    return len(words) > _RUN and len(taken) >= _COPIED * len(words)


def _runs(words: Sequence[str]) -> list[Run]:
    return [tuple(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)]


def repeats(claim: Claim, earlier: Claim) -> bool:
    """Tell whether a claim says what an earlier one says: its words, or nearly, and no new figure.

    A few other words make another claim only with other evidence.
    """
    said, before = (frozenset(one.words) - STOP for one in (claim, earlier))
    new = said - before
    if not new:
        return True
    figures = any(word[0].isdigit() for word in new)
    return set(claim.ids) <= set(earlier.ids) and not figures and len(new) <= _NEW * len(said)


def hedges(text: str) -> bool:
    """Tell whether a text says that it may be otherwise."""
    return bool(_HEDGES & set(words_of(text)))


def states(claim: Claim, passages: Sequence[str]) -> bool:
    """Tell whether a claim states something: it asks nothing, and advises nothing of its own."""
    advises = _ADVICE & set(claim.words) - set(words_of("\n".join(passages)))
    return not advises and not claim.text.endswith("?")
