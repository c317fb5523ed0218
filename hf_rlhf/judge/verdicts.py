"""A judge model's reply, read strictly: a grade on the scale, or the reason why it is none.

Nothing is guessed. A reply that does not hold a verdict is a failure of the judge, and a failure
is never a score of the candidate.
"""

import json
import re
from typing import Any

from hf_rlhf.judge.prompts import LEVELS

_BRACE = re.compile(r"[{}]")
_DEEPEST = 20


class Malformed(Exception):
    """The reply holds no verdict; the message says why, in words fit to send back."""


def read_verdict(reply: str) -> tuple[float, str]:
    """Return the score in [0, 1] and the reason of the last verdict in a reply.

    Thinking is dropped first. The last JSON object decides; it must be a verdict of exactly
    `score` and, optionally, `reason`, each once. A number off the scale, a bool, NaN, or another
    object begun after it and left unfinished raise Malformed.
    """
    verdict = _last_object(_without_thinking(reply))
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
    # A bool is an int to Python: `true` would be read as a grade of 1.
    if isinstance(score, bool) or not isinstance(score, int | float) or score != score:
        raise Malformed(f"'score' is {_shown(score)}, not an integer from 0 to {LEVELS}.")
    if score not in range(LEVELS + 1):
        raise Malformed(f"'score' is {_shown(score)}, not an integer from 0 to {LEVELS}.")
    return int(score)


def _shown(score: Any) -> str:
    return repr(score)[:40]


def _without_thinking(reply: str) -> str:
    """Keep what follows the last thought; chat templates often open <think> in the prompt."""
    _, closed, rest = reply.rpartition("</think>")
    answer = rest if closed else reply
    return answer.partition("<think>")[0]


def _last_object(text: str) -> dict[str, Any]:
    """Return the last JSON object, which no brace may follow and no open brace may enclose.

    A judge that quotes the candidate's own verdict inside a broken object must not be read as
    having given that verdict.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_no_repeats)
    found: dict[str, Any] | None = None
    depth = position = 0
    while brace := _BRACE.search(text, position):
        position = brace.end()
        if brace.group() == "}":
            depth = max(0, depth - 1) if found is None else depth - 1
            continue
        try:
            value, position = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            depth += 1
            if depth > _DEEPEST:  # each further try would read all of the rest once more
                raise Malformed("its JSON object is not complete or not valid JSON.") from None
        else:
            if depth:
                raise Malformed("its JSON object is not complete or not valid JSON.")
            found = value
            continue
        found = None
    if found is None or depth:
        raise Malformed("it does not end in a complete JSON object.")
    return found


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key is given twice")
    return keys
