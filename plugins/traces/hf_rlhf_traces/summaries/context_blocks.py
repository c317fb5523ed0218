"""Parse the results in the prompt of a sample of `steps`."""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hf_rlhf_traces.format import Format


@dataclass(frozen=True, slots=True)
class Passage:
    """A document of a search result in the prompt."""

    title: str
    text: str


def passages(result: str, form: Format) -> list[Passage]:
    """Return the documents of an `<information>` block, by the template that wrote them.

    Text that resembles a document's head is a head only if its number is the next. If the template
    does not begin with fixed text, the block is a single passage without a title.
    """
    head = _head(form.document)
    starts: list[re.Match[str]] = []
    for match in head.finditer(result) if head else ():
        number = match.groupdict().get("number")
        if number is None or int(number) == len(starts) + 1:
            starts.append(match)
    if not starts or starts[0].start() > 0:
        return [Passage("", result)] if result.strip() else []
    ends: Sequence[int] = [*(match.start() for match in starts[1:]), len(result)]
    return [
        Passage(match.groupdict().get("title") or "", result[match.end() : end])
        for match, end in zip(starts, ends, strict=True)
    ]


@lru_cache(maxsize=8)
def _head(template: str) -> re.Pattern[str] | None:
    """Return the pattern of a document's head, up to its content; None without fixed text."""
    pattern, literal = "", False
    for text, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(text)
        literal |= bool(text.strip())
        if name == "content" or name is None or f"(?P<{name}>" in pattern:
            break
        value = "[0-9]{1,9}" if name == "number" else r"[^\n]*?"
        pattern += f"(?P<{name}>{value})"
    return re.compile(f"^{pattern}", re.MULTILINE) if literal else None
