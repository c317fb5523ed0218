"""Which writing system a letter belongs to, and which ones a language is written in."""

import unicodedata
from functools import lru_cache

from hf_rlhf.errors import DataError

LANGUAGES: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        "cs da de en es fi fr hu id it nb nl pl pt ro sv tr vi".split(), frozenset({"LATIN"})
    ),
    **dict.fromkeys("bg ru uk".split(), frozenset({"CYRILLIC"})),
    **dict.fromkeys("ar fa ur".split(), frozenset({"ARABIC"})),
    **dict.fromkeys("hi mr ne".split(), frozenset({"DEVANAGARI"})),
    "bn": frozenset({"BENGALI"}),
    "el": frozenset({"GREEK"}),
    "he": frozenset({"HEBREW"}),
    "ja": frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"}),
    "ko": frozenset({"HANGUL"}),
    "ta": frozenset({"TAMIL"}),
    "th": frozenset({"THAI"}),
    "zh": frozenset({"CJK"}),
}
"""ISO 639-1 codes, with the first words of the Unicode names of their letters."""


def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts of a language code (`en`, `zh-Hans`). Raises DataError if unknown."""
    code = language.replace("_", "-").split("-")[0].lower()
    if code not in LANGUAGES:
        raise DataError(
            f"language_consistency: the column `language` says {language!r}. Expected an ISO "
            f"639-1 code, one of {', '.join(sorted(LANGUAGES))}; null leaves a row out."
        )
    return LANGUAGES[code]


@lru_cache(maxsize=65536)
def script(letter: str) -> str:
    """Return the script of one character, such as `LATIN`; "" for what is no letter.

    Python has no script property; the first word of a letter's Unicode name is its script.
    """
    if not letter.isalpha():
        return ""
    return unicodedata.name(letter, "UNNAMED").split()[0]
