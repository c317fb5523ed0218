"""The parts of a rollout for the datasets: its turns, its digest, and its question's key."""

import hashlib
import unicodedata
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hf_rlhf_rollouts import Rollout, SearchResult, Step


def question_key(question: str) -> str:
    """Return 16 hex digits shared by questions that differ only in case, space or composition."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def content_of(trace: Rollout) -> bytes:
    """Return question, steps and fields as JSON, the source of a trace's digest.

    Raises TypeError or UnicodeEncodeError for values outside JSON, RecursionError for deep nesting.
    """
    return _ENCODER.encode((trace.question, trace.steps, trace.fields))


class Turn(Struct, frozen=True, gc=False):
    """The agent's actions before it waited, and their results."""

    actions: tuple[Step, ...]
    """Reasoning, searches (several if parallel) or an answer; unknown steps."""
    results: tuple[SearchResult, ...]
    """Empty at the end of a trace."""


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Split a trace at its results: results in a row belong together.

    The concatenated actions and results equal the steps.
    """
    parted: list[Turn] = []
    actions: list[Step] = []
    results: list[SearchResult] = []
    for step in steps:
        if isinstance(step, SearchResult):
            results.append(step)
            continue
        if results:
            parted.append(Turn(tuple(actions), tuple(results)))
            actions, results = [], []
        actions.append(step)
    if actions or results:
        parted.append(Turn(tuple(actions), tuple(results)))
    return parted
