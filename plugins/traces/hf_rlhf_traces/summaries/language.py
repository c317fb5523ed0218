"""Whether a text is written in another script than the one it is about.

Only scripts are told apart, not languages: French for English is not noticed, Chinese for English
is. That is what models do that were trained mostly in another language. Language identification
would need a model, and is unreliable on names and numbers.
"""

import unicodedata
from collections import Counter
from functools import lru_cache

FEWEST_LETTERS = 20
"""A text with fewer letters is not called foreign."""
SHARE = 0.05
"""A script is at home in a text in which at least this share of the letters is of it."""
_EAST_ASIAN = frozenset({"CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO"})


def is_foreign(text: str, about: str) -> bool:
    """Say whether most letters of `text` are of a script that `about` hardly has.

    Chinese characters and Japanese kana count as one script.
    """
    letters = _scripts(text)
    if letters.total() < FEWEST_LETTERS:
        return False
    script, count = letters.most_common(1)[0]
    known = _scripts(about)
    return 2 * count > letters.total() and known[script] < SHARE * known.total()


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
