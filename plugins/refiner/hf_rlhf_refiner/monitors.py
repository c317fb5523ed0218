"""Rewards of weight 0 that a run logs beside its reward, without a judge.

Each returns a number for every completion, so that none voids a row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import text_of
from hf_rlhf_refiner.answer import Answer, Source, parse_answer


@dataclass
class AnswerFormat:
    """1 if the answer is well formed, else 0. Suitable as a gate."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return 1.0 or 0.0 per completion."""
        return [float(answer.well_formed) for answer in _answers(completions)]


@dataclass
class AnswerLength:
    """Number of words in the answer, without tags."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return the number of words per completion."""
        return [float(answer.words) for answer in _answers(completions)]


@dataclass
class SnippetCount:
    """Number of claims in the answer with a citation."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """Return the number of claims per completion."""
        return [float(len(answer.claims)) for answer in _answers(completions)]


@dataclass
class HallucinatedIds:
    """Share of the citations that match no source; 0 if nothing is cited."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        sources: Sequence[Sequence[Source]],
        **_: Any,
    ) -> list[float]:
        """Return the share per completion."""
        return [
            parse_answer(text_of(text), [source["id"] for source in provided]).hallucinated_id_rate
            for text, provided in zip(completions, sources, strict=True)
        ]


@dataclass
class UncitedShare:
    """Share of the statements without a citation; 0 if nothing is stated."""

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        question: Sequence[str] | None = None,
        **_: Any,
    ) -> list[float]:
        """Return the share per completion; `question`: see `parse_answer`."""
        requested: Sequence[str | None] = question or [None] * len(completions)
        return [
            parse_answer(text_of(text), (), about).uncited_share
            for text, about in zip(completions, requested, strict=True)
        ]


def _answers(completions: Sequence[Any]) -> Iterator[Answer]:
    return (parse_answer(text_of(text)) for text in completions)
