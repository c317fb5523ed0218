"""Paired tags in a text: one pass, however many of them are never closed."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Pair(NamedTuple):
    """An opening tag, and where its content ends and the text goes on."""

    opened: re.Match[str]
    end: int
    after: int

    @property
    def inside(self) -> str:
        """The content."""
        return self.opened.string[self.opened.end() : self.end]


def pairs(opening: re.Pattern[str], text: str) -> Iterator[Pair]:
    """Yield each opening tag up to its next closing one, by the name in the first group.

    One that is never closed is text. A pattern with `(.*?)</\\1>` finds the same, and searches the
    rest of the text for each of these anew.
    """
    at, missing = 0, set[str]()
    while opened := opening.search(text, at):
        closing = f"</{opened[1]}>"
        end = -1 if closing in missing else text.find(closing, opened.end())
        if end < 0:
            missing.add(closing)
            at = opened.end()
            continue
        at = end + len(closing)
        yield Pair(opened, end, at)


def without_pairs(opening: re.Pattern[str], text: str) -> str:
    """Return the text outside of the pairs."""
    at, outside = 0, []
    for pair in pairs(opening, text):
        outside.append(text[at : pair.opened.start()])
        at = pair.after
    return "".join([*outside, text[at:]])
