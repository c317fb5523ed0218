"""The reward `language_consistency`: against answers that wander between languages."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import DataError, RewardError

SCRIPTS = {
    **dict.fromkeys(("de", "en", "es", "fr", "it", "pt"), ("LATIN",)),
    **dict.fromkeys(("bg", "ru", "uk"), ("CYRILLIC",)),
    **dict.fromkeys(("ar", "fa", "ur"), ("ARABIC",)),
    "el": ("GREEK",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "zh": ("CJK",),
}
"""ISO 639-1 codes, with the first words of the Unicode names of their letters."""


@dataclass
class LanguageConsistency:
    """Share of an answer's letters that are in the script of the language of its row.

    1.0 when all are, 0.0 at `floor` and below, a straight line between. The column `language` has
    an ISO 639-1 code, or null: such a row is left out (write `on_none: skip`). After the language
    consistency reward of DeepSeek-R1 (2025, section 2.3.2).
    """

    floor: float = 0.5
    """Share of letters that earns nothing."""

    def __post_init__(self) -> None:
        """Raise RewardError for a floor that cannot work."""
        if not 0 <= self.floor < 1:
            raise RewardError(f"language_consistency: floor is {self.floor}; expected [0, 1).")

    def __call__(
        self, completions: Sequence[Any], language: Sequence[str | None], **_: Any
    ) -> list[Score]:
        """Return one score in [0, 1] per completion; None where the row names no language."""
        pairs = zip(completions, language, strict=True)
        return [None if code is None else self._score(text_of(text), code) for text, code in pairs]

    def _score(self, answer: str, code: str) -> float:
        if code not in SCRIPTS:
            raise DataError(
                f"language_consistency: the column `language` says {code!r}. Expected one of "
                f"{', '.join(sorted(SCRIPTS))}, or null to leave the row out."
            )
        letters = [unicodedata.name(letter, "?") for letter in answer if letter.isalpha()]
        right = sum(name.split()[0] in SCRIPTS[code] for name in letters)
        share = right / len(letters) if letters else 0.0
        return max(0.0, (share - self.floor) / (1 - self.floor))
