"""Find paired tags in a text in a single pass, however many are unclosed."""

import re
from collections.abc import Iterator
from typing import NamedTuple


class Pair(NamedTuple):
    """An opening tag, with the end of its content and of its closing tag."""

    opened: re.Match[str]
    end: int
    after: int

    @property
    def inside(self) -> str:
        """Return the content."""
        return self.opened.string[self.opened.end() : self.end]


def pairs(opening: re.Pattern[str], text: str) -> Iterator[Pair]:
    """Yield each opening tag up to its next closing tag, by the name in the first group.

    An unclosed tag is text. A pattern with `(.*?)</\\1>` would give the same result, but search the
    rest of the text again for each unclosed tag.
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
