"""The form of a `data_insight` answer, the evidence of its prompt, and the wording of its claims.

    Insights:
    - A fact or insight, in one line. [E1]
    - Another, from two pieces of evidence. [E1][E2]
    Conclusion: One or two sentences. [E1][E2]
    Uncertainty: What is open, or "none". [E2]

Evidence is in the last user turn of the prompt, each piece from `[E1]` at the start of a line to
the next line of this form or an empty line. An answer cannot add evidence.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.data import text_of

MOST_INSIGHTS = 12
_EVIDENCE = re.compile(r"^\[(E\d+)\][ \t]*(.*)$")
_REFS = re.compile(r"\[\s*(E\d+(?:\s*[,;]\s*E\d+)*)\s*\]")
_HEAD = re.compile(r"^(insights|conclusion|uncertainty):[ \t]*(.*)$", re.IGNORECASE)
_BULLET = re.compile(r"^\s*[-*•][ \t]+(.*)$")
_MARKUP = re.compile(r"<[^\s<>\d][^<>]*>|<!--|\[//\]|\]\(|```")
_PARTS = ("insights", "conclusion", "uncertainty")
_HIDDEN = frozenset(
    "\u200b\u2060\ufeff\u00ad\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_WORD = re.compile(r"[^\W_]+(?:[.,]\d+)*", re.UNICODE)
_STOP_WORDS = """a an the and or of in on at to by for from with as is are was were be been it its
    this that than then there not no nothing none only one may so"""
STOP = frozenset(_STOP_WORDS.split())
"""Words without a topic."""


@dataclass(frozen=True)
class Claim:
    """An insight, or the conclusion: its text, and the evidence cited for it."""

    text: str
    """Without its references."""
    ids: tuple[str, ...]
    """Each once, in order."""

    @property
    def words(self) -> tuple[str, ...]:
        """Its words and numbers, case folded."""
        return words_of(self.text)


@dataclass(frozen=True)
class Answer:
    """A parsed answer; with malformations the rest is what could be read."""

    insights: tuple[Claim, ...]
    conclusion: Claim | None
    uncertainty: Claim | None
    malformations: tuple[str, ...]


def evidence_of(prompt: Any) -> dict[str, str] | None:
    """Return the evidence of a prompt by id; None for none, or for two texts with the same id."""
    text = prompt
    if not isinstance(prompt, str):
        turns = [turn for turn in prompt or () if turn.get("role") == "user"]
        text = text_of(turns[-1:]) if turns else ""
    lines_of: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in str(text).splitlines():
        if match := _EVIDENCE.match(line):
            if match[1] in lines_of:
                return None
            current = lines_of.setdefault(match[1], [match[2]])
        elif not line.strip():
            current = None
        elif current is not None:
            current.append(line.strip())
    pieces = {key: " ".join(lines).strip() for key, lines in lines_of.items()}
    return pieces if pieces and all(pieces.values()) else None


def parse_answer(text: str) -> Answer:
    """Parse a completion, without a leading `<think>` block. Never raises."""
    body = _without_thinking(text)
    wrong = set(_hidden(body))
    sections = _sections(body, wrong)
    bullets = []
    for line in sections.get("insights", ()):
        match = _BULLET.match(line)
        if match and words_of(_REFS.sub("", match[1])):
            bullets.append(_claim(match[1]))
        elif line.strip():
            wrong.add("no_bullet")
    if not bullets:
        wrong.add("no_insights")
    if len(bullets) > MOST_INSIGHTS:
        wrong.add("too_many_insights")
    single = {}
    for name in _PARTS[1:]:
        claim = _claim(" ".join(sections.get(name, ())))
        if not claim.words:
            wrong.add(f"no_{name}")
        else:
            single[name] = claim
    return Answer(
        tuple(bullets[:MOST_INSIGHTS]),
        single.get("conclusion"),
        single.get("uncertainty"),
        tuple(sorted(wrong)),
    )


def words_of(text: str) -> tuple[str, ...]:
    """Return the words and numbers of a text, case folded, in order."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def content_of(text: str) -> frozenset[str]:
    """Return the words and numbers with a topic, plurals folded."""
    return frozenset(_stem(word) for word in words_of(text)) - STOP


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def _sections(body: str, wrong: set[str]) -> Mapping[str, Sequence[str]]:
    """Return the lines of each part, noting parts that are out of order or repeated."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in body.splitlines():
        if head := _HEAD.match(line.strip()):
            name = head[1].lower()
            if name in sections or len(sections) != _PARTS.index(name):
                wrong.add("parts_out_of_order")
            current = sections.setdefault(name, [])
            current.append(head[2])
        elif _EVIDENCE.match(line.strip()) or line.strip().casefold() == "evidence:":
            # Lines that look like the prompt's evidence are not the policy's to write.
            wrong.add("evidence_in_answer")
        elif current is not None:
            current.append(line)
        elif line.strip():
            wrong.add("text_outside")
    return sections


def _claim(text: str) -> Claim:
    ids = [ref.strip() for refs in _REFS.findall(text) for ref in re.split(r"[,;]", refs)]
    plain = " ".join(_REFS.sub(" ", text).split())
    return Claim(re.sub(r"\s+([.,;:!?])", r"\1", plain), tuple(dict.fromkeys(ids)))


def _hidden(body: str) -> Sequence[str]:
    faults = []
    if _MARKUP.search(body):
        faults.append("markup")
    if any(char in _HIDDEN or 0xE0000 <= ord(char) <= 0xE007F for char in body):
        faults.append("hidden_characters")
    return faults


def _without_thinking(text: str) -> str:
    """Drop a leading `<think>` block, whose opening may stand in the chat template's prompt."""
    before, closed, after = text.partition("</think>")
    return after if closed and not _HEAD.search(before) else text


# What the wording of a claim shows without a judge.
_RUN = 4
"""Words in a row that count as copied."""
_COPIED = 0.85
"""Share of a claim's words in such runs of the evidence from which it is a copy."""
_NEW = 0.25
"""Share of new words up to which a claim on the same evidence is a repetition."""
_HEDGE_WORDS = "may might could possibly perhaps maybe probably seemingly apparently"
_HEDGES = frozenset(_HEDGE_WORDS.split())
_ADVICE_WORDS = "should shall ought recommend recommends recommended advise advises advised"
_ADVICE = frozenset(_ADVICE_WORDS.split())

Run = tuple[str, ...]


def runs_of(passages: Sequence[str]) -> frozenset[Run]:
    """Return every run of words of the passages that a copy of them would have."""
    return frozenset(run for passage in passages for run in _runs(words_of(passage)))


def is_copy(claim: Claim, runs: frozenset[Run]) -> bool:
    """Return whether a claim consists of runs of the evidence, but for a few words.

    A claim of up to 4 words is never a copy.
    """
    words = claim.words
    copied = {
        index
        for start, run in enumerate(_runs(words))
        if run in runs
        for index in range(start, start + _RUN)
    }
    return len(words) > _RUN and len(copied) >= _COPIED * len(words)


def _runs(words: Sequence[str]) -> list[Run]:
    return [tuple(words[start : start + _RUN]) for start in range(len(words) - _RUN + 1)]


def repeats(claim: Claim, earlier: Claim) -> bool:
    """Return whether a claim repeats an earlier claim: nearly its words, and no new figure.

    A few other words make another claim only with other evidence.
    """
    words, before = (frozenset(each.words) - STOP for each in (claim, earlier))
    new = words - before
    if not new:
        return True
    figures = any(word[0].isdigit() for word in new)
    return set(claim.ids) <= set(earlier.ids) and not figures and len(new) <= _NEW * len(words)


def hedges(text: str) -> bool:
    """Return whether a text hedges."""
    return bool(_HEDGES & set(words_of(text)))


def states(claim: Claim, passages: Sequence[str]) -> bool:
    """Return whether a claim states something: it neither asks nor advises on its own."""
    advises = _ADVICE & set(claim.words) - set(words_of("\n".join(passages)))
    return not advises and not claim.text.endswith("?")
