"""A judge model's reply, parsed strictly: a grade on the scale, or the reason why it is none.

Nothing is guessed. A reply that does not hold a verdict is a failure of the judge, and a failure
is never a score of the candidate.
"""

import json
import re
from typing import Any

from hf_rlhf.rewards.judges.prompts import LEVELS

_BRACE = re.compile(r"[{}]")
_ASIDE = re.compile(r"\{(?![^{}]*score)[^{}\"]*\}", re.IGNORECASE)
"""Braces of a formula or a set, which may stand before the object: no quotes, no grade."""


class Malformed(ValueError):
    """The reply holds no verdict; the message is the cause, in words fit to send back."""


def read_verdict(reply: str) -> tuple[float, str]:
    """Return the score in [0, 1] and the reason of the verdict in a reply.

    Thinking is dropped first. What is left must hold one JSON object, a verdict of exactly `score`
    and, optionally, `reason`, each once. A number off the scale, a bool, NaN, and a second object,
    whole or not, raise Malformed: one of the two may be quoted from the candidate.
    """
    verdict = read_object(reply)
    if extra := sorted(set(verdict) - {"score", "reason"}):
        raise Malformed(f"unexpected keys {', '.join(map(repr, extra))[:100]}.")
    if "score" not in verdict:
        raise Malformed("the JSON object has no 'score'.")
    reason = verdict.get("reason", "")
    if not isinstance(reason, str):
        raise Malformed("'reason' is not a string.")
    storable = reason.encode("utf-8", "replace").decode("utf-8")
    return _grade(verdict["score"]) / LEVELS, storable


def _grade(score: Any) -> int:
    # A bool is an int to Python: `true` would be read as a grade of 1. NaN is in no range.
    number = isinstance(score, int | float) and not isinstance(score, bool)
    if not number or score not in range(LEVELS + 1):
        raise Malformed(f"'score' is {repr(score)[:40]}, not an integer from 0 to {LEVELS}.")
    return int(score)


def _without_thinking(reply: str) -> str:
    """Keep what follows the last thought; chat templates often open <think> in the prompt."""
    _, closed, rest = reply.rpartition("</think>")
    answer = rest if closed else reply
    return answer.partition("<think>")[0]


def read_object(reply: str) -> dict[str, Any]:
    """Return the one JSON object of a reply, beside which no other may stand, whole or begun.

    Thinking is dropped first. A judge that quotes a verdict of the candidate's, before or after its
    own or inside a broken object, has not given that verdict. Raises ValueError with the cause, in
    words fit to send back.
    """
    text = _without_thinking(reply)
    begin = text.find("{")
    while begin >= 0 and (aside := _ASIDE.match(text, begin)):
        begin = text.find("{", aside.end())
    if begin < 0:
        raise Malformed("it holds no JSON object.")
    try:
        verdict, end = json.JSONDecoder(object_pairs_hook=_no_repeats).raw_decode(text, begin)
    except (ValueError, RecursionError):
        raise Malformed("its JSON object is not complete or not valid JSON.") from None
    if _BRACE.search(_ASIDE.sub("", text[:begin]) + text[end:]):
        raise Malformed("it holds more than one JSON object, or a brace outside of it.")
    return dict(verdict)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key occurs twice")
    return keys
