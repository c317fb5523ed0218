"""The reward `language_consistency`: against reasoning that wanders between languages."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import RewardError

from language_consistency.scripts import script, scripts_of

# What belongs to no language: code, formulas, links, tags. A dollar sign opens a formula by
# pandoc's rule (nothing blank inside it, no digit after it), or "$5 and $10" would be one.
_NEUTRAL = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$.*?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\(.*?\\\)|\\\[.*?\\\]"
    r"|https?://\S+|</?[A-Za-z][^<>]*>",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]+")


@dataclass
class LanguageConsistency:
    """Share of an answer's letters that are in the script of the language that is asked for.

    1.0 when all are, 0.0 at `floor` and below, a straight line between. The column `language`
    holds an ISO 639-1 code; a row without one is left out (write `on_none: skip`). Code, formulas,
    links, tags and words of the prompt belong to no language, within `allowance`. Two languages
    of one script look the same here. After the language consistency reward of DeepSeek-R1
    (2025, section 2.3.2), which counts words of the target language.
    """

    floor: float = 0.5
    """Share of letters that earns nothing."""
    allowance: float = 1.0
    """How many letters of code, formulas and quotations may stand for each letter of prose. What
    is beyond counts as another language, or a fence would hide a whole answer."""

    def __post_init__(self) -> None:
        """Raise RewardError for fields that cannot work."""
        if not 0 <= self.floor < 1:
            raise RewardError(f"language_consistency: floor is {self.floor}; expected [0, 1).")
        if not 0 <= self.allowance < float("inf"):
            raise RewardError(
                f"language_consistency: allowance is {self.allowance}; expected 0 or more."
            )

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        language: Sequence[str | None],
        **_: Any,
    ) -> list[Score]:
        """Return one score in [0, 1] per completion; None where the row names no language."""
        rows = zip(prompts, completions, language, strict=True)
        return [
            None if asked is None else self._score(text_of(prompt), text_of(completion), asked)
            for prompt, completion, asked in rows
        ]

    def _score(self, prompt: str, answer: str, language: str) -> float:
        share = consistent_share(prompt, answer, language, self.allowance)
        return max(0.0, (share - self.floor) / (1 - self.floor))


def consistent_share(prompt: str, answer: str, language: str, allowance: float = 1.0) -> float:
    """Return the share of letters in the language's script; 0.0 for an answer without any.

    An answer without letters is no answer in any language, so it earns nothing: an abstention
    would excuse it, and full marks would make a row of digits the safest thing to say.
    """
    wanted = scripts_of(language)
    quoted = set(_WORD.findall(_folded(prompt)))
    text = _folded(answer)
    prose, neutral = _NEUTRAL.sub(" ", text), _letters("".join(_NEUTRAL.findall(text)))
    inside = outside = 0
    for word in _WORD.findall(prose):
        right = sum(script(letter) in wanted for letter in word)
        wrong = _letters(word) - right
        inside += right
        if word in quoted:
            neutral += wrong
        else:
            outside += wrong
    outside += max(0, neutral - int(allowance * inside))
    return inside / (inside + outside) if inside else 0.0


def _folded(text: str) -> str:
    # Full-width and mathematical letters are the letters that they look like.
    return unicodedata.normalize("NFKC", text)


def _letters(text: str) -> int:
    return sum(bool(script(letter)) for letter in text)
