"""Rule-based rewards: length and hollow phrases, a pattern, JSON, a mathematical answer.

Each reward is in [0, 1] and therefore also usable as a gate.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hf_rlhf.contracts import Score
from hf_rlhf.data import text_of
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf.formatting import visible

HOLLOW_PHRASES = (
    "That's a great question",
    "Great question",
    "Absolutely!",
    "Certainly!",
    "Of course!",
    "I'd be happy to help",
)
"""Openers and affirmations that add words without content."""
TOKEN = re.compile(r"\w+|[^\w\s]")
"""Words and punctuation marks, about as many as GPT-2 tokens of English text."""


@dataclass
class Concise:
    """1.0 for a short response without hollow phrases, falling to 0.0 with its length.

    A response of at most `full` tokens scores 1, of at least `zero` tokens 0, and between them in
    proportion; with `hard`, any length above `full` scores 0. A hollow phrase, or no text at all,
    scores 0.
    """

    full: int = 150
    """Maximum number of tokens for a score of 1."""
    zero: int = 300
    """Number of tokens from which the score is 0."""
    hard: bool = False
    """Score 0 above `full`, without a slope."""
    phrases: tuple[str, ...] = HOLLOW_PHRASES
    """Hollow phrases, in any case and with either apostrophe. Empty: only length counts."""

    def __post_init__(self) -> None:
        """Raise ConfigError for limits without room for a slope."""
        if self.full < 1 or self.zero <= self.full:
            what = f"`full` is {self.full} and `zero` is {self.zero}."
            raise _invalid("concise", what, "Write 1 <= full < zero.")

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[Score]:
        """Return a score in [0, 1] per completion."""
        texts = list(map(text_of, completions))
        hollow = [bool(self._hollow and self._hollow.search(_straight(text))) for text in texts]
        if log_metric is not None and texts:
            log_metric("concise/hollow", sum(hollow) / len(texts))
        scores = (self._by_length(len(TOKEN.findall(text))) for text in texts)
        return [0.0 if empty else score for score, empty in zip(scores, hollow, strict=True)]

    def _by_length(self, tokens: int) -> float:
        if tokens == 0:
            return 0.0
        if self.hard:
            return float(tokens <= self.full)
        return min(1.0, max(0.0, (self.zero - tokens) / (self.zero - self.full)))

    @cached_property
    def _hollow(self) -> "re.Pattern[str] | None":
        """Return a pattern of all phrases, each ending at a word boundary."""
        if not self.phrases:
            return None
        words = (re.escape(_straight(phrase.strip())) for phrase in self.phrases)
        return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)


@dataclass
class Matches:
    """Score 1.0 for a response that matches a regular expression, otherwise 0.0."""

    pattern: str
    """A regular expression of Python's `re`; `.` also matches a line break."""
    whole: bool = False
    """The whole response must match, apart from surrounding white space."""
    absent: bool = False
    """Invert the score: 1.0 if nothing matches."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a pattern that does not compile."""
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise _invalid(
                "matches", f"`pattern` is no regular expression: {error}.", "Correct it."
            ) from error

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[Score]:
        """Return 1.0 or 0.0 per completion."""
        pattern = re.compile(self.pattern, re.DOTALL)
        search = pattern.fullmatch if self.whole else pattern.search
        return [
            float((search(text_of(completion).strip()) is not None) != self.absent)
            for completion in completions
        ]


@dataclass
class ValidJson:
    """Score 1.0 for a single JSON value, valid under a schema if there is one; otherwise 0.0.

    A fenced code block around the value is allowed. Numbers outside JSON (NaN, Infinity) and
    repeated keys are invalid.
    """

    schema: Mapping[str, Any] = field(default_factory=dict)
    """A JSON Schema, draft 2020-12. Empty: any JSON value."""
    fenced: bool = True
    """Allow a code block (three backquotes) around the value."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid schema."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(dict(self.schema))
            shallow: tuple[Any, ...] = (None, {}, [])
            for value in shallow:
                Draft202012Validator(dict(self.schema)).is_valid(value)
        except SchemaError as error:
            raise _invalid(
                "valid_json",
                f"`schema` is no JSON Schema: {error.message} (at {error.json_path}).",
                "See https://json-schema.org/draft/2020-12.",
            ) from error
        except RecursionError as error:
            what = "`schema` refers to itself for the same part of the value, without end."
            raise _invalid("valid_json", what, "Put its `$ref` below `items` or a property.") from (
                error
            )

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[Score]:
        """Return 1.0 or 0.0 per completion."""
        from jsonschema import Draft202012Validator

        validator = Draft202012Validator(dict(self.schema))
        return [float(self._meets(validator, text_of(completion))) for completion in completions]

    def _meets(self, validator: Any, text: str) -> bool:
        text = text.strip()
        try:
            value: Any = json.loads(
                _unfenced(text) if self.fenced else text,
                parse_constant=_refuse,
                object_pairs_hook=_unique_keys,
            )
            return bool(validator.is_valid(value))
        except (ValueError, RecursionError):
            return False


@dataclass
class MathAnswer:
    """Score 1.0 if the response's last answer equals the row's `solution`, otherwise 0.0.

    Uses TRL's `accuracy_reward`, which compares with math-verify: the answer is in `\boxed{}` or
    another LaTeX form. The solution is read after `####` if present, as in GSM8K. None for a row
    with an unparsable solution.
    """

    plain: bool = True
    """Also read an answer after `####`, as in GSM8K's solutions."""

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], solution: Sequence[str], **_: Any
    ) -> list[Score]:
        """Return 1.0, 0.0 or None per completion."""
        from trl.rewards import accuracy_reward

        logging.getLogger("math_verify.parser").addFilter(_is_readable)
        texts = [self._boxed(text_of(completion)) for completion in completions]
        messages = [[{"role": "assistant", "content": text}] for text in texts]
        solutions = [self._boxed(text) for text in solution]
        scores: list[Score] = accuracy_reward(messages, solutions)
        return scores

    def _boxed(self, text: str) -> str:
        if not self.plain or not (answers := _AFTER_HASHES.findall(text)):
            return text
        number = answers[-1].strip().replace(",", "").removeprefix("$").rstrip(".")
        return f"\\boxed{{{number}}}"


def _is_readable(record: logging.LogRecord) -> bool:
    """Shorten a message of math-verify, which contains the policy's text verbatim."""
    record.msg, record.args = visible(record.getMessage())[:120], ()
    return True


_AFTER_HASHES = re.compile(r"####([^\n]+)")


def _invalid(name: str, what: str, fix: str) -> ConfigError:
    return ConfigError([Problem(name, what, fix)])


def _straight(text: str) -> str:
    """Return text with typewriter apostrophes."""
    return text.replace("\u2019", "'")


def _unfenced(text: str) -> str:
    """Return the content of a fenced code block; other text unchanged.

    A pattern of `re` with white space on both sides of `.*` would take cubic time.
    """
    first, _, rest = text.partition("\n")
    content, _, last = rest.rpartition("\n")
    is_fenced = first.rstrip().lower() in ("```", "```json") and last.strip() == "```"
    return content if is_fenced else text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)
