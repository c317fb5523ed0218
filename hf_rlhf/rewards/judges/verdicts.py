"""Parse a judge model's reply strictly: a grade on the scale, or the reason against it.

Nothing is guessed. A reply without a verdict is a failure of the judge, never a score of the
candidate.
"""

import json
import re
from typing import Any

from hf_rlhf.rewards.judges.prompts import LEVELS

_BRACE = re.compile(r"[{}]")
_ASIDE = re.compile(r"\{(?![^{}]*score)[^{}\"]*\}", re.IGNORECASE)
"""Braces of a formula or a set, which may precede the object: no quotes, no grade."""
_CLOSED = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]", re.IGNORECASE)
_OPENED = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]", re.IGNORECASE)
_FENCE = re.compile(r"```(?:json)?\s*\Z", re.IGNORECASE)
_SENTENCE_END = r"[.!?。！？][)\"'*_]*"
_LABEL = (
    r"(?:(?:based on|given|considering|after) [^\n:.{}]{1,200}, )?[ \t*#_-]*(?:(?:here(?:['’]s)?|"
    r"this|it|is|my|the|final|overall|so|thus|therefore|as|follows|in|grade|score|rating|verdict|"
    r"json(?: (?:object|output|response|result|format))?|evaluation|assessment|judge?ment)\b"
    r"[ \t:*#_-]*)*"
)
"""Words that can only announce the judge's own verdict: `**Final verdict:**`."""
_INTRODUCES = re.compile(r"[:,;=…–—\-\"'`“‘«(\[<>][*_)|\s]*\Z")
"""The end of a paragraph that introduces the next text."""
_ANNOUNCES = re.compile(rf"(?:(?:\A|{_SENTENCE_END}\s){_LABEL}|{_SENTENCE_END})\Z", re.IGNORECASE)


class Malformed(ValueError):
    """The reply has no verdict; the message is a cause that can be sent back to the model."""


def read_verdict(reply: str) -> tuple[float, str]:
    """Return the score in [0, 1] and the reason of the verdict in a reply.

    The reply's JSON object must have exactly `score` and, optionally, `reason`, each once. A number
    off the scale, a bool, and NaN raise Malformed.
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
    # A bool is an int in Python: `true` would be a grade of 1. NaN is in no range.
    number = isinstance(score, int | float) and not isinstance(score, bool)
    if not number or score not in range(LEVELS + 1):
        raise Malformed(f"'score' is {repr(score)[:40]}, not an integer from 0 to {LEVELS}.")
    return int(score)


def _without_thinking(reply: str) -> str:
    """Keep the text after the last thought; chat templates often open <think> in the prompt."""
    answer = _CLOSED.split(reply)[-1]
    if _OPENED.search(answer):
        raise Malformed("its thinking does not end.")
    return answer


def read_object(reply: str) -> dict[str, Any]:
    """Return the only JSON object of a reply, at its end.

    Thinking is dropped first. The object is alone, fenced or not, or follows whole sentences, a
    paragraph, or a label like `Verdict:`. An object inside a sentence, or after `The candidate
    wrote:`, is a quote, and following text may withdraw it: neither is a verdict. Raises ValueError
    with a cause that can be sent back to the model.
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
    if text[end:].strip() not in ("", "```") or not _announces(text[:begin]):
        raise Malformed("its JSON object stands among other words, as a quotation does.")
    return dict(verdict)


def _announces(words: str) -> bool:
    """Return whether an object after these words is the writer's own, not a quotation."""
    words = _FENCE.sub("", words)
    text = words.rstrip()
    is_paragraph = words[len(text) :].count("\n") > 1 and not _INTRODUCES.search(text[-20:])
    return is_paragraph or bool(_ANNOUNCES.search(text.rpartition("\n")[2]))


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key occurs twice")
    return keys
