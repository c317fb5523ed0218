"""What the datasets need of a rollout: its turns, its digest, and the key of its question."""

import hashlib
import unicodedata
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hf_rlhf_rollouts import Rollout, SearchResult, Step


def question_key(question: str) -> str:
    """Return 16 hex digits that questions share which differ in case, space or composition only."""
    text = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


_ENCODER = msgspec.json.Encoder(enc_hook=str)


def content_of(trace: Rollout) -> bytes:
    """Return question, steps and fields as JSON, of which the digest of a trace is made.

    Raises TypeError or UnicodeEncodeError for what is no JSON, RecursionError for deep nesting.
    """
    return _ENCODER.encode((trace.question, trace.steps, trace.fields))


class Turn(Struct, frozen=True, gc=False):
    """The agent's actions before it waited, and their results."""

    actions: tuple[Step, ...]
    """Reasoning, searches (several if parallel) or an answer; unknown steps."""
    results: tuple[SearchResult, ...]
    """Empty at the end of a trace."""


def turns(steps: Sequence[Step]) -> list[Turn]:
    """Part a trace at its results: results in a row belong together.

    All actions and results one after another are the steps again.
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
