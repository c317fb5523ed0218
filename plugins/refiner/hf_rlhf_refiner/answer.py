"""Parse a refiner's answer: one `<answer>` block with claims in `<snippet id=ID1,ID2>…</snippet>`.

The parser serves rewards, monitors and data. It is strict about tags and lenient about the spelling
of id lists. It never raises on a completion, never repairs silently (every defect is listed in
`Answer.malformations`), and runs in linear time.

The same tag carries sources in tool output (`scan_sources`) and citations in an answer
(`parse_answer`), which are therefore read apart; `split_ids` normalises the ids of both.
"""

import re
import unicodedata
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from hf_rlhf_refiner.statements import abstains, count_words, statements

Malformation = Literal[
    "missing_answer",
    "several_answers",
    "nested_answer",
    "unterminated_answer",
    "stray_answer_close",
    "empty_answer",
    "text_outside",
    "snippet_outside",
    "nested_snippet",
    "unclosed_snippet",
    "stray_snippet_close",
    "empty_claim",
    "missing_ids",
    "bad_attributes",
    "misspelt_tag",
]


class Source(TypedDict):
    """A snippet that a tool returned and that the prompt contains."""

    id: str
    text: str


@dataclass(frozen=True)
class Claim:
    """The text of a snippet tag and the ids that it cites: normalised, unique, in order."""

    text: str
    ids: tuple[str, ...]
    hallucinated: tuple[str, ...]
    """The `ids` that match no source."""

    @property
    def valid(self) -> tuple[str, ...]:
        """The `ids` that match a source."""
        unknown = set(self.hallucinated)
        return tuple(identifier for identifier in self.ids if identifier not in unknown)

    @property
    def words(self) -> tuple[str, ...]:
        """The claim's words and signs in order, without case, width or sentence punctuation."""
        return tuple(_WORDS_AND_SIGNS.findall(unicodedata.normalize("NFKC", self.text).casefold()))

    @property
    def asks(self) -> bool:
        """Whether the claim is a question and so states nothing."""
        return self.text.rstrip(_QUOTES + " )").endswith(("?", "？"))


@dataclass(frozen=True)
class Answer:
    """The parsed content of a completion and the defects of its form.

    All answer blocks are read, so that no block can override or hide another; a nested block
    belongs to the block around it. Snippets outside an answer cite nothing.
    """

    text: str
    """The completion without a leading `<think>` block."""
    body: str
    """The content of the answer block, tags included; empty if there is no block."""
    claims: tuple[Claim, ...]
    """Every cited claim that contains a word, in order, repeated claims included."""
    uncited: tuple[str, ...]
    """Sentences of the answer that state something and cite nothing."""
    abstentions: tuple[str, ...]
    """Uncited sentences that only say that the sources do not contain the answer."""
    words: int
    """Words inside the answer block, tags not counted."""
    malformations: tuple[Malformation, ...]
    """Names of the defects, sorted, without repetition."""

    @property
    def well_formed(self) -> bool:
        """Whether the form has no defects; ids that match no source do not count."""
        return not self.malformations

    @property
    def cited_ids(self) -> tuple[str, ...]:
        """Every citation of every claim in order; an id cited twice counts twice."""
        return tuple(identifier for claim in self.claims for identifier in claim.ids)

    @property
    def hallucinated_id_rate(self) -> float:
        """Share of the citations that match no source; 0 if nothing is cited."""
        wrong = sum(len(claim.hallucinated) for claim in self.claims)
        return wrong / len(self.cited_ids) if self.cited_ids else 0.0

    @property
    def uncited_share(self) -> float:
        """Share of the statements that cite nothing; 0 when nothing is stated."""
        stated = len(self.claims) + len(self.uncited)
        return len(self.uncited) / stated if stated else 0.0

    @property
    def repeats(self) -> frozenset[int]:
        """Indices of the claims that repeat an earlier claim word for word."""
        first: dict[tuple[str, ...], int] = {}
        return frozenset(
            index
            for index, claim in enumerate(self.claims)
            if first.setdefault(claim.words, index) != index
        )

    def grounded_text(self, claims: Iterable[Claim]) -> str:
        """Return the `claims` that cite a real source, as tags with their real ids only."""
        return "\n".join(
            f"<snippet id={','.join(claim.valid)}>{claim.text}</snippet>"
            for claim in claims
            if claim.valid
        )


# Possessive quantifiers, and classes that stop at the next "<": no input makes these backtrack.
_TAG = re.compile(r"<\s*+/?+\s*+(?:answer|snippet)\b[^<>]*+>?+", re.IGNORECASE)
_OPENING = re.compile(r"<snippet(?:\s++([^<>]*+))?+>")
_ID_LIST = re.compile(r"id\s*+=\s*+([^<>]*+)")
_SOURCE_ID = re.compile(r"(?<!\S)id\s*+=\s*+(\"[^\"]*+\"|'[^']*+'|[^\s\"']++)")
# "1.5" is a single word; "<" and "%" are signs that distinguish claims; "." and "," do not count.
_WORDS_AND_SIGNS = re.compile(r"\w+(?:[.,]\w+)*|[^\w\s.,;:!?\"'`“”‘’„«»()\u200b]")
_QUOTES = "\"'`“”‘’„«»"
_WORD = re.compile(r"[^\W_]+")
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def parse_answer(text: str, valid_ids: Iterable[str] = (), question: str | None = None) -> Answer:
    """Parse a completion; `valid_ids` are the ids of the row's sources. Never raises.

    If `question` is given, an abstention with a name or number that the question lacks counts as an
    uncited statement.
    """
    text = _without_thinking(text)
    known = {identifier for raw in valid_ids for identifier in split_ids(raw)}
    requested = None
    if question is not None:
        requested = frozenset(_WORD.findall(" ".join([question, *known]).casefold()))
    reader = _Reader(known, requested)
    position = 0
    for tag in _TAG.finditer(text):
        reader.read_text(text[position : tag.start()])
        reader.read_tag(tag.group())
        position = tag.end()
    reader.read_text(text[position:])
    return reader.finish(text)


def split_ids(value: str) -> tuple[str, ...]:
    """Return the ids in `value`: split at commas and blanks, unquoted, NFC, each once, in order.

    Ids are case-sensitive. This is the only normaliser: sources and citations both pass here.
    """
    pieces = unicodedata.normalize("NFC", value).replace(",", " ").split()
    unquoted = [piece.strip(_QUOTES) for piece in pieces]
    return tuple(dict.fromkeys(filter(None, unquoted)))


@dataclass
class _Reader:
    """Consumes tags and texts in turn and collects what an `Answer` needs."""

    known: set[str]
    asked: frozenset[str] | None = None
    """Words of the question and the ids; None if unknown."""
    depth: int = 0
    blocks: int = 0
    body: list[str] = field(default_factory=list)
    open_snippets: list[tuple[int, tuple[str, ...], list[str]]] = field(default_factory=list)
    claims: list[tuple[int, Claim]] = field(default_factory=list)
    opened: int = 0
    gap: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    words: int = 0
    wrong: set[Malformation] = field(default_factory=set)

    def read_text(self, text: str) -> None:
        if not self.depth:
            if text.strip():
                self.wrong.add("text_outside")
            return
        self.body.append(text)
        self.words += count_words(text)
        (self.open_snippets[-1][2] if self.open_snippets else self.gap).append(text)

    def read_tag(self, tag: str) -> None:
        if tag == "<answer>":
            self._open_answer()
        elif tag == "</answer>":
            self._close_answer()
        elif tag != "</snippet>" and not _OPENING.fullmatch(tag):
            self.wrong.add("misspelt_tag")
        elif not self.depth:
            self.wrong.add("snippet_outside")
        else:
            self.body.append(tag)
            self._end_gap()
            if tag == "</snippet>":
                self._close_snippet()
            else:
                self._open_snippet(tag)

    def finish(self, text: str) -> Answer:
        if self.depth:
            self.wrong.add("unterminated_answer")
            self.depth = 1
            self._close_answer()
        if not self.blocks:
            self.wrong.add("missing_answer")
        elif not self.words:
            self.wrong.add("empty_answer")
        stated = [statement for gap in self.gaps for statement in statements(gap, self.asked or ())]
        marked = [(sentence, abstains(sentence, self.asked)) for sentence in stated]
        return Answer(
            text=text,
            body="".join(self.body).strip(),
            claims=tuple(claim for _, claim in sorted(self.claims, key=lambda pair: pair[0])),
            uncited=tuple(s for s, abstained in marked if not abstained),
            abstentions=tuple(s for s, abstained in marked if abstained),
            words=self.words,
            malformations=tuple(sorted(self.wrong)),
        )

    def _open_answer(self) -> None:
        if self.depth:
            self.wrong.add("nested_answer")
        else:
            self.blocks += 1
            self.body.append("\n")
            if self.blocks > 1:
                self.wrong.add("several_answers")
        self.depth += 1

    def _close_answer(self) -> None:
        if not self.depth:
            self.wrong.add("stray_answer_close")
            return
        self.depth -= 1
        if self.depth:
            return
        self._end_gap()
        while self.open_snippets:
            self.wrong.add("unclosed_snippet")
            self._close_snippet()

    def _open_snippet(self, tag: str) -> None:
        if self.open_snippets:
            self.wrong.add("nested_snippet")
        ids, attributes_fit = _cited(tag, self.known)
        if not attributes_fit:
            self.wrong.add("bad_attributes")
        elif not ids:
            self.wrong.add("missing_ids")
        self.opened += 1
        self.open_snippets.append((self.opened, ids, []))

    def _close_snippet(self) -> None:
        if not self.open_snippets:
            self.wrong.add("stray_snippet_close")
            return
        order, ids, parts = self.open_snippets.pop()
        text = " ".join("".join(parts).split())
        if not count_words(text):
            self.wrong.add("empty_claim")
        elif not ids:
            self.gaps.append(text)
        else:
            unknown = tuple(identifier for identifier in ids if identifier not in self.known)
            self.claims.append((order, Claim(text, ids, unknown)))

    def _end_gap(self) -> None:
        gap = "".join(self.gap)
        self.gap.clear()
        if gap.strip():
            self.gaps.append(gap)


def _cited(tag: str, known: Container[str]) -> tuple[tuple[str, ...], bool]:
    """Return the ids of an opening tag and whether `id` is its only attribute."""
    opening = _OPENING.fullmatch(tag)
    attributes = ((opening.group(1) if opening else None) or "").strip()
    if not attributes:
        return (), True
    listed = _ID_LIST.fullmatch(attributes)
    if not listed:
        return (), False
    ids = split_ids(listed.group(1))
    plain = tuple(item for item in ids if "=" not in item or item in known)
    return plain, plain == ids


def _without_thinking(text: str) -> str:
    """Drop a leading `<think>…</think>`, whose opening may stand in the chat template's prompt."""
    start = text.lstrip()
    if start.startswith(_THINK_OPEN):
        return start.partition(_THINK_CLOSE)[2]
    before, closed, after = start.partition(_THINK_CLOSE)
    return after if closed and "<answer>" not in before else text


@dataclass(frozen=True)
class SourceScan:
    """The sources in a tool's output and the defects of the blocks that were left out."""

    sources: list[Source]
    problems: list[str]


def scan_sources(tool_output: str) -> SourceScan:
    """Return every `<snippet id=ID>text</snippet>` of raw tool output, in order. Never raises.

    Tags may have other attributes. An exact duplicate of a block is dropped. Blocks without text or
    with a missing id or several ids are left out and reported; if two texts share an id, the first
    text wins. An unterminated block ends at the next block; it is used and reported.
    """
    result: dict[str, str] = {}
    problems: list[str] = []
    openings = list(_OPENING.finditer(tool_output))
    ends = [*(opening.start() for opening in openings[1:]), len(tool_output)]
    for opening, end in zip(openings, ends, strict=False):
        text, closed, _ = tool_output[opening.end() : end].partition("</snippet>")
        text = text.strip()
        where = f"snippet at character {opening.start()}"
        match = _SOURCE_ID.search(opening.group(1) or "")
        ids = split_ids(match.group(1)) if match else ()
        if len(ids) != 1:
            problems.append(f"{where}: expected one id, found {', '.join(ids) or 'none'}")
        elif not text:
            problems.append(f"{where}: id {ids[0]!r} has no text")
        elif result.get(ids[0], text) != text:
            problems.append(f"{where}: id {ids[0]!r} is already given to another text")
        else:
            result[ids[0]] = text
            if not closed:
                problems.append(f"{where}: id {ids[0]!r} is not closed by </snippet>")
    sources = [Source(id=identifier, text=text) for identifier, text in result.items()]
    return SourceScan(sources, problems)


def source_texts(sources: Sequence[Source]) -> dict[str, str]:
    """Map the normalised ids of a row's sources to their texts."""
    return {
        identifier: source["text"] for source in sources for identifier in split_ids(source["id"])
    }
