"""Split text of any language into sentences, without a model."""

import re
from collections.abc import Iterator

LONGEST = 400
"""Maximum characters of a sentence; longer text, for example a table, is cut at white space."""
LINES = 300
"""Characters after which a line end ends a sentence; before, only an empty line does. Text may be
wrapped, and single lines of a record or a list have little content."""
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+"  # possessive, or a million dots take quadratic time
    r"|[。！？｡．।॥؟۔]+[”’」』）]*\s*"  # a space after these is optional
    r"|(?P<lines>\n\s*)"
)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence, or of pieces of at most LONGEST characters."""
    start = 0
    for match in _END.finditer(text):
        lines = match["lines"]
        if lines and lines.count("\n") == 1 and match.start() - start < LINES:
            continue
        yield from _pieces(text, start, match.end())
        start = match.end()
    yield from _pieces(text, start, len(text))


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        cut = end
        if end - start > LONGEST:
            space = max(text.rfind(mark, start + 1, start + LONGEST) for mark in " \t\u3000")
            cut = space + 1 if space > start else start + LONGEST
        piece = text[start:cut]
        if inner := piece.strip():
            begin = start + len(piece) - len(piece.lstrip())
            yield begin, begin + len(inner)
        start = cut
