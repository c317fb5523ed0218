"""Which rows are read at all, by their fields and answers, and which answers are learned.

A condition is one comparison of a field with a value, `reward>=1`; nothing in it is evaluated.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from hf_rlhf.data import near
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.evaluation.text import exact_match
from hf_rlhf_traces.readers.rough import BadRow, Noted
from hf_rlhf_traces.trace import RIGHT_ANSWER, Answer, Reasoning, Search, SearchResult, Step

Answers = Literal["all", "not_wrong", "correct"]
ANSWERS: tuple[Answers, ...] = ("all", "not_wrong", "correct")
EXPECTED = "expected_answer"
"""The field with the answer that is known to be right, or a list of such."""
_COMPARISON = re.compile(r"\s*([^\s<>=!]+)\s*(>=|<=|==|!=|>|<|=)\s*(.*?)\s*", re.DOTALL)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "==": operator.eq, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_TRUTH = {"true": 1.0, "false": 0.0}
_WRONG = re.compile(r"incorrect|wrong|false|notcorrect|unsuccessful|failed")
_RIGHT = re.compile(r"(?!.*partial).*(correct|right|true)")
_OTHER = re.compile(r"[^a-z]+")


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a field of a row with a value."""

    text: str
    field: str
    """Dotted, to reach into objects: `verdict.score`."""
    sign: str
    value: str

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raise BadRow for a row of which it does not hold, or whose field cannot be compared."""
        value: Any = fields
        for part in [self.field] if self.field in fields else self.field.split("."):
            if not isinstance(value, Mapping) or value.get(part) is None:
                known = list(value) if isinstance(value, Mapping) else []
                names = ", ".join(map(str, known[:12])) or "none"
                detail = f"there is no field {self.field!r}{near(part, known)}; fields: {names}"
                raise BadRow("field_missing", detail)
            value = value[part]
        left: float | str | None = _number(value)
        other: float | str | None = _number(self.value)
        if left is None or other is None:
            if self.sign not in ("==", "=", "!=") or not isinstance(value, (str, int, float)):
                detail = f"{self.field} is {value!r}, which is not comparable by {self.text!r}"
                raise BadRow("field_missing", detail[:200])
            left, other = str(value), self.value
        if not _OPERATORS[self.sign](left, other):
            raise BadRow("filtered", f"{self.field} is {value!r}"[:200])


@lru_cache(64)
def condition(text: str) -> Condition:
    """Return the condition that `--where` gives. Raises ConfigError for what is none."""
    match = _COMPARISON.fullmatch(text)
    if match is None or not match[3] or match[3][0] in "<>=!":
        fix = "Write FIELD, a sign of >= <= > < == != and a value: 'reward>=1'."
        raise ConfigError([Problem("--where", f"{text!r} is no comparison.", fix)])
    if match[2] in (">=", "<=", ">", "<") and _number(match[3]) is None:
        fix = "Compare texts by == or !=."
        what = f"{text!r} compares by {match[2]} with {match[3]!r}, which is no number."
        raise ConfigError([Problem("--where", what, fix)])
    quoted = len(match[3]) > 2 and match[3][0] in "'\"" and match[3][-1] == match[3][0]
    return Condition(text, match[1], match[2], match[3][1:-1] if quoted else match[3])


def _number(value: Any) -> float | None:
    """Return a number, true and false as 1 and 0; in tables they may be text. None for others."""
    text = value.strip().lower() if isinstance(value, str) else value
    try:
        number = _TRUTH[text] if text in _TRUTH else float(text)
    except (ValueError, TypeError, OverflowError):  # a word, a list, a number of 400 digits
        return None
    return None if math.isnan(number) else number  # or `!=` would hold of each


def selected(
    steps: tuple[Step, ...],
    fields: Mapping[str, Any],
    noted: Noted,
    *,
    answers: Answers,
    typed: bool,
) -> tuple[Step, ...]:
    """Return the steps to learn from, by the trace's answer.

    An answer that the source calls wrong is none but with `all`: it is left out with the reasoning
    for it. With `correct`, only traces are kept whose answer is known to be right: by its type,
    where the form has such (`typed`), or as it is the field `expected_answer`.

    Raises BadRow for a trace that is left out.
    """
    answer = next((step for step in steps if isinstance(step, Answer)), None)
    if answers == "all" or (answers == "not_wrong" and (answer is None or not _is_wrong(answer))):
        return steps
    if answers == "not_wrong":
        return _without_answer(steps, noted)
    _check_correct(answer, fields.get(EXPECTED), typed=typed)
    return steps


def _is_wrong(answer: Answer) -> bool:
    return answer.kind is not RIGHT_ANSWER and bool(_WRONG.search(_plain(answer.kind)))


@lru_cache(1024)
def _plain(kind: str) -> str:
    return _OTHER.sub("", kind.lower())


def _without_answer(steps: Sequence[Step], noted: Noted) -> tuple[Step, ...]:
    """Leave out the answer of a trace, and the reasoning since the last search or result."""
    acts = [at for at, step in enumerate(steps) if isinstance(step, (Search, SearchResult))]
    if not acts:
        raise BadRow("answer_wrong", "the source calls the answer wrong, and there is no search")
    noted["answers_wrong"] += 1
    ended = steps[acts[-1] + 1 :]
    rest = (step for step in ended if not isinstance(step, (Answer, Reasoning)))
    return (*steps[: acts[-1] + 1], *rest)


def _check_correct(answer: Answer | None, expected: Any, *, typed: bool) -> None:
    if answer is None:
        raise BadRow("answer_unjudged", "there is no answer")
    kind = _plain(answer.kind)
    if _is_wrong(answer):
        raise BadRow("answer_wrong", f"the source calls it {answer.kind!r}")
    if typed and _RIGHT.match(kind):
        return
    known = [
        answer_text
        for answer_text in (expected if isinstance(expected, list) else [expected])
        if answer_text not in (None, "")
    ]
    if not known:
        detail = f"nothing says whether the answer is right: no field {EXPECTED!r}, no such type"
        raise BadRow("answer_unjudged", detail)
    if not any(exact_match(answer.content, str(answer_text)) for answer_text in known):
        detail = f"{answer.content[:60]!r} is not {EXPECTED} {str(known[0])[:60]!r}"
        raise BadRow("answer_wrong", detail)
