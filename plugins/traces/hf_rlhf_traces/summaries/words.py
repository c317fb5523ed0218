"""Sentences and words of a text in any language, as far as that goes without a model."""

import re
import unicodedata
from collections.abc import Iterator

LONGEST = 400
"""Characters of a sentence; a longer one, such as a table's, is cut at white space."""
LINES = 300
"""A piece of so many characters ends with its line. Before that only an empty line ends it: text
may be wrapped, and the lines of a record or a list say little one by one."""
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+\s+"  # a million dots are looked at once, not squared
    r"|[。！？｡．।॥؟۔]+[”’」』）]*\s*"  # no space follows these, or need not
    r"|(?P<lines>\n\s*)"
)
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Burmese, Khmer, Chinese, Japanese: no spaces between words."""


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence, or piece of one of at most LONGEST characters.

    They end at a full stop before a space, at the marks of other scripts, or before an empty line.
    """
    start = 0
    for match in _END.finditer(text):
        lines = match["lines"]
        if lines and lines.count("\n") == 1 and match.start() - start < LINES:
            continue
        yield from _pieces(text, start, match.end())
        start = match.end()
    yield from _pieces(text, start, len(text))


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > LONGEST:
        space = max(text.rfind(mark, start + 1, start + LONGEST) for mark in " \t\u3000")
        cut = space + 1 if space > start else start + LONGEST
        yield from _stripped(text, start, cut)
        start = cut
    yield from _stripped(text, start, end)


def _stripped(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if inner := piece.strip():
        begin = start + len(piece) - len(piece.lstrip())
        yield begin, begin + len(inner)


def words(text: str) -> list[str]:
    """Return words and numbers, case and compatibility folded; pairs of characters where a script
    has no spaces.
    """
    folded = text if text.isascii() else unicodedata.normalize("NFKC", text)
    matches = _WORD.findall(folded.casefold())
    if text.isascii():
        return matches
    return [part for word in matches for part in _parted(word)]


def _parted(word: str) -> Iterator[str]:
    end = 0
    for run in _UNSPACED.finditer(word):
        if end < run.start():
            yield word[end : run.start()]
        letters = run.group()
        yield from (letters[i : i + 2] for i in range(max(1, len(letters) - 1)))
        end = run.end()
    if end < len(word):
        yield word[end:]
