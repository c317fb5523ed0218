"""Lists in columns, for a terminal of any width."""

import shutil
import sys
import textwrap

_NARROW = 24
"""Characters; text in a narrower column is hard to read."""


def width(longest: int = 98) -> int:
    """Return the width for text: the terminal's, or `longest` for a wide terminal or a pipe."""
    return min(shutil.get_terminal_size().columns, longest) if sys.stdout.isatty() else longest


def fill(text: str, indent: int, hanging: int = 0) -> str:
    """Return text in lines of `width()` that end between words."""
    return textwrap.fill(
        text,
        width(),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )


def list_line(head: str, text: str, source: str = "", source_width: int = 24) -> str:
    """Return a line of a list: the columns in `head`, the source and the description.

    On a terminal the text wraps within its column, and the source goes behind it where the line
    would be longer, and below the head where too little room is left. A pipe gets a single line.
    """
    line = f"{head} {source:{source_width}} {text}" if source else f"{head} {text}"
    if len(line) <= width(1_000_000):
        return line.rstrip()
    if width() - len(head) < _NARROW:
        return f"{head.rstrip()}\n" + fill(f"{text} ({source})" if source else text, 4)
    below = fill(f"{text} ({source})" if source else text, len(head) + 1)
    return head + below[len(head) :]
