"""The right answers and verdicts in the source of a trace.

An answer whose type marks it as wrong is not trained on. A verdict in another field, such as a
reward of 0, is only counted, because its meaning differs between sources.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hf_rlhf.data import BadRow
from hf_rlhf_rollouts import RIGHT_ANSWER, Answer, Noted, Reasoning, Search, SearchResult, Step

_WRONG = re.compile(r"incorrect|wrong|false|notcorrect|unsuccessful|failed")
_OTHER = re.compile(r"[^a-z]+")
EXPECTED = "expected_answer"
_RIGHT = (
    *(EXPECTED, "expected_answers", "golden_answers", "golden_answer", "golden", "gold_answers"),
    *("gold_answer", "gold", "ground_truth", "ground_truths", "reference_answer"),
    *("reference_answers", "correct_answer", "correct_answers", "target", "targets", "reference"),
)
"""Fields with a right answer or a list of right answers; the first field with any counts."""
_INNER = ("target", "targets", "answer", "answers", "value", "aliases")
"""Keys of the answer within an object, as in Search-R1's `ground_truth.target`."""
_HOLDERS = ("reward_model", "extra_info", "metadata", "verifier_metadata", "info")
"""Fields that may contain these fields."""
_VERDICTS = (
    *("reward", "score", "correct", "is_correct", "success", "is_success", "solved", "resolved"),
    *("passed", "exact_match", "em", "verdict"),
)
_NO = re.compile(r"false|no|incorrect|wrong|fail|failed|failure|0(\.0*)?")


def without_wrong_answer(steps: tuple[Step, ...], noted: Noted) -> tuple[Step, ...]:
    """Leave out an answer that the source marks as wrong, and the reasoning for it.

    Raises BadRow if nothing is left to train on.
    """
    kinds = [step.kind for step in steps if isinstance(step, Answer) and step.kind != RIGHT_ANSWER]
    if not any(_WRONG.search(_OTHER.sub("", kind.lower())) for kind in kinds):
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


def right_answers(fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the field with right answers, and the answers; "" if there is none."""
    for name, value in _with_held(fields):
        if name.rpartition(".")[2] in _RIGHT and (answers := list(_texts(value))):
            return name, answers
    return "", []


def note_verdicts(fields: Mapping[str, Any], noted: Noted) -> None:
    """Count the fields with right answers, and verdicts of a wrong trace."""
    name, _ = right_answers(fields)
    if name and name != EXPECTED:
        noted[f"right_answers.{name}"] += 1
    verdicts = (name for name, value in _with_held(fields) if _says_no(name, value))
    if name := next(verdicts, ""):
        noted[f"called_wrong.{name}"] += 1


def _with_held(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields to read, in order of certainty, then their nested fields."""
    yield from ((name, fields[name]) for name in (*_RIGHT, *_VERDICTS) if name in fields)
    for holder in _HOLDERS:
        if isinstance(held := fields.get(holder), Mapping):
            yield from ((f"{holder}.{name}", value) for name, value in _with_held(held))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = [value[key] for key in _INNER if key in value]
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool) and str(value).strip():
        yield str(value)


def _says_no(name: str, value: Any) -> bool:
    if name.rpartition(".")[2] not in _VERDICTS:
        return False
    if isinstance(value, str):
        return bool(_NO.fullmatch(value.strip().lower()))
    return isinstance(value, (bool, int, float)) and value <= 0
