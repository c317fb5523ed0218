"""Detect calls that submit an answer, by the full names of tool and argument.

A tool with such a word only as part of its name, like `get_answer` or `search_final_reports`, does
not count. In `submit_answer {"answer": 42, "explanation": "…"}` the answer is 42, even if the
explanation is longer.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_GIVES = "give|provide|return|report|present|deliver|send|output|state|submit"
_OF_ANSWERS = re.compile(
    rf"submit|final|(({_GIVES})_)?((the|your|my)_)?((final_)?(answer|result|response|solution)s?|"
    r"final_(output|report|conclusion|verdict))|answer_(question|user)|finali[sz]e_answer"
)
"""Tools that take only answers."""
_OF_ENDS = re.compile(
    r"submit_\w+|finali[sz]e|(finish|finished|complete|end)(_task)?|respond|conclude|done|"
    r"task_(complete|completed|done|finished)|attempt_completion|terminate"
)
"""Tools that may take other values, such as an order or file paths."""
_ANSWERS = (
    *("final_answer", "final_result", "final_response", "answer", "result", "response"),
    *("final_output", "solution"),
)
"""Arguments that are the answer, the most certain first."""
_TEXTS = ("value", "text", "content", "message", "output", "report", "summary")
"""Arguments that are the answer if there is no other, and keys that may wrap an answer."""
_ASKS = re.compile(r"(\w+_)?(q|query|queries|questions?|keywords?|prompt)")
_REMARK = re.compile(
    r"(\w+_)?(reason|reasoning|explanation|rationale|justification|analysis|thoughts?|evidence|"
    r"confidence|score|status|sources?|citations?|references?|urls?|notes?|comments?|units?)"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Submission(NamedTuple):
    """The answer that a call submits."""

    text: str
    """JSON if the value is not text."""
    left_out: tuple[str, ...] = ()
    """The other arguments."""


def submission(tool: str, arguments: str, *, replies: bool = False) -> Submission | None:
    """Return the answer that a call submits; None for a call of another tool.

    It is the argument with the name of an answer. Otherwise it is the only argument beside remarks
    (such as an explanation), if the tool takes only answers or its name has the argument's name:
    `submit_report {"report"}`.

    Args:
        tool: the agent's name of the tool; a namespace prefix is ignored.
        arguments: JSON, or the answer itself.
        replies: whether the agent writes a reply after the call. Then the argument must have the
            name of an answer, or the tool must take only answers.
    """
    name, certain = _plain_name(tool), takes_answers(tool)
    if not certain and not _OF_ENDS.fullmatch(name):
        return None
    given = _parsed(arguments)
    if isinstance(given, list) and len(given) == 1:
        given = given[0]  # a single positional argument
    if not isinstance(given, Mapping):
        is_damaged = isinstance(given, str) and given[:1] in ("{", "[")
        given = {} if is_damaged or (replies and not certain) else {"answer": given}
    given = {key: value for key, value in given.items() if value is not None}
    key = _answer_in(given)
    if key is None and (only := _only_answer(given)) is not None:
        named = _snake(only) in (*_TEXTS, name.removeprefix("submit_"))
        key = only if certain or (named and not replies) else None
    left_out: list[str] = []
    value: Any = given
    while isinstance(value, Mapping) and key is not None:
        left_out += [other for other in value if other != key]
        value = value[key]
        key = _answer_in(value) if isinstance(value, Mapping) else None
    text = "" if value is given else _text(value)
    return Submission(text, tuple(left_out)) if text else None


def takes_answers(tool: str) -> bool:
    """Return whether a tool is for answers alone."""
    return bool(_OF_ANSWERS.fullmatch(_plain_name(tool)))


def _answer_in(given: Mapping[str, Any]) -> str | None:
    names = {_snake(name): name for name in given}
    return next((names[answer] for answer in _ANSWERS if answer in names), None)


def _only_answer(given: Mapping[str, Any]) -> str | None:
    """Return the only argument that may be an answer; None beside a question, or if several may."""
    names = {name: _snake(name) for name, value in given.items() if not isinstance(value, bool)}
    if any(map(_ASKS.fullmatch, names.values())):
        return None
    answers = [name for name, plain in names.items() if not _REMARK.fullmatch(plain)]
    return answers[0] if len(answers) == 1 else None


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in _TEXTS:
        return _text(next(iter(value.values())))
    if isinstance(value, str) or value in (None, [], {}):
        return (value or "").strip()
    return json.dumps(value, ensure_ascii=False)


def _parsed(arguments: str) -> Any:
    """Return the value of JSON, including JSON in a JSON text; any other text unchanged."""
    value: Any = arguments.strip()
    for _ in range(2):
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            break
    return value


def _plain_name(tool: str) -> str:
    return _snake(re.split(r"[.:/]|__", tool)[-1])


def _snake(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", _CAPITAL.sub("_", name.strip()).lower()).strip("_")
