"""Detect text in another script than its source.

Scripts are compared, not languages: it detects Chinese for English, but not French for English.
Language identification would need a model, and is unreliable on names and numbers.
"""

import unicodedata
from collections import Counter
from functools import lru_cache

FEWEST_LETTERS = 20
"""Minimum number of letters for a text to count as foreign."""
SHARE = 0.05
"""Minimum share of a script's letters for the script to belong to a text."""
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"})


def is_foreign(text: str, about: str) -> bool:
    """Return whether most letters of `text` are of a script that `about` hardly has.

    Chinese characters and Japanese kana count as the same script.
    """
    letters = _scripts(text)
    if letters.total() < FEWEST_LETTERS:
        return False
    script, count = letters.most_common(1)[0]
    expected = _scripts(about)
    return 2 * count > letters.total() and expected[script] < SHARE * expected.total()


def _scripts(text: str) -> Counter[str]:
    """Count letters by script."""
    counted: Counter[str] = Counter()
    for letter, count in Counter(text).items():
        if letter.isalpha():
            counted[_script(letter)] += count
    return counted


@lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter: the first word of its Unicode name."""
    first = unicodedata.name(letter, "UNKNOWN").split(" ")[0].partition("-")[0]
    return "CJK" if first in _EAST_ASIAN else first
