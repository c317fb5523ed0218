"""Answers that the source of a trace calls wrong: they are not trained on."""

import re
from functools import lru_cache

from hf_rlhf.data import BadRow
from hf_rlhf_traces.readers.raw_trace import Noted
from hf_rlhf_traces.trace import RIGHT_ANSWER, Answer, Reasoning, Search, SearchResult, Step

_WRONG = re.compile(r"incorrect|wrong|false|notcorrect|unsuccessful|failed")
_OTHER = re.compile(r"[^a-z]+")


def without_wrong_answer(steps: tuple[Step, ...], noted: Noted) -> tuple[Step, ...]:
    """Leave out an answer that the source calls wrong, and the reasoning for it.

    Raises BadRow where nothing is left to train on.
    """
    if not any(isinstance(step, Answer) and _is_wrong(step) for step in steps):
        return steps
    acts = [at for at, step in enumerate(steps) if isinstance(step, (Search, SearchResult))]
    if not acts:
        raise BadRow("answer_wrong", "the source calls the answer wrong, and there is no search")
    noted["answers_wrong"] += 1
    last = acts[-1] + 1
    return (
        *steps[:last],
        *(step for step in steps[last:] if not isinstance(step, (Answer, Reasoning))),
    )


def _is_wrong(answer: Answer) -> bool:
    return answer.kind is not RIGHT_ANSWER and bool(_WRONG.search(_letters(answer.kind)))


@lru_cache(1024)
def _letters(kind: str) -> str:
    return _OTHER.sub("", kind.lower())
