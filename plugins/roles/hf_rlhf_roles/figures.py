"""Figures of a claim that its evidence states, or that are a step of arithmetic away.

A figure agrees when the evidence states it (in the same kind: 12% is not 12; in the same currency,
where both have a currency; 4.2 million is 4,200,000), or when it follows from two of its figures by

* sum or difference, for a plain figure, and between percentages (percentage points);
* the change or the share in percent, for a percentage;
* the quotient, for "2.5 times";

rounded as the claim writes it. Of years ("in 2025") only the difference of two is a figure. A
figure with a minus sign needs the sign in the evidence, a decline, or a later figure that is
smaller. Numbers written as words are not read.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

_SCALES = {
    **dict.fromkeys(("thousand", "k"), 1e3),
    **dict.fromkeys(("million", "m", "mn"), 1e6),
    **dict.fromkeys(("billion", "bn"), 1e9),
}
_FIGURE = re.compile(
    r"(?<![\w.,])(?P<minus>(?<![%)\]])[-−](?=[\d$€£]))?(?P<currency>[$€£])?\s?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)"
    r"(?:\s?(?P<percent>%|percent\b|per\ cent\b|percentage\ points?\b)"
    r"|\s(?P<times>times\b)|(?P<x>x\b|-?fold\b)"
    r"|\s?(?P<scale>thousand|million|billion|bn|mn|k|m)\b)?(?![\w])",
    re.IGNORECASE,
)
_MONTHS = """january february march april may june july august september october november
    december"""
_BEFORE_YEAR = "|".join(f"in for since until during by of from to and year {_MONTHS}".split())
_AFTER_YEAR = "and|or|to|than|as|the|a|it|its|was|were|with|on|for|from|but|when|while|after|before"
_YEAR = re.compile(
    rf"\b(?:{_BEFORE_YEAR})\s+((?:19|20)\d\d)(?=\s*$|[^\w\s%](?!\d)|\s+(?:{_AFTER_YEAR})\b)",
    re.IGNORECASE,
)
"""A year, and not a number of something: a unit would follow."""
_IN_YEAR = re.compile(
    r"(?:\s+(?!and\b|but\b|while\b|or\b|than\b|to\b)\w+){0,5}\s+(?:in|for|during)\s+"
)
"""Between a figure and its year."""
_MIXED = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d_])\w+\b")
_RANGE = re.compile(r"\s*(?:to|and|or|-|–)\s*", re.IGNORECASE)
_MOST = 16
"""Figures of the evidence from which others are derived: pairs grow with the square."""

_UP = """rose rise rises risen grew grow grows grown increase increases increased gained gain gains
    climbed raised up higher improved doubled tripled"""
_DOWN = """fell fall falls fallen declined decline declines decreased decrease decreases dropped
    drop drops lost shrank down lower lowered halved worsened"""
UP, DOWN = frozenset(_UP.split()), frozenset(_DOWN.split())


@dataclass(frozen=True)
class Figure:
    """A figure of a text."""

    text: str
    value: float
    kind: str
    """`%`, `x` (times) or nothing."""
    precision: float
    """Half of the last place that is written."""
    currency: str = ""
    span: tuple[int, int] = (0, 0)
    """Its start and end in the text."""
    is_year: bool = False
    negative: bool = False
    """Whether it is written with a minus sign; `value` is without."""

    def is_close(self, value: float) -> bool:
        """Return whether `value` is this figure when rounded to its precision."""
        return abs(abs(value) - self.value) <= self.precision * (1 + 1e-9) + 1e-12


def figures_of(text: str) -> list[Figure]:
    """Return the figures of a text; in "50 to 56 million" both are millions."""
    matches = list(_FIGURE.finditer(text))
    scales = [_SCALES.get((match["scale"] or "").lower(), 1.0) for match in matches]
    kinds = [
        "%" if match["percent"] else "x" * bool(match["times"] or match["x"]) for match in matches
    ]
    for index in range(len(matches) - 2, -1, -1):
        between = text[matches[index].end() : matches[index + 1].start()]
        plain = scales[index] == 1.0 and not kinds[index]
        if plain and _RANGE.fullmatch(between) and scales[index + 1] != 1.0:
            scales[index] = scales[index + 1]
        elif plain and _RANGE.fullmatch(between) and kinds[index + 1] == "%":
            kinds[index] = "%"
    years = {match.start(1) for match in _YEAR.finditer(text)}
    figures = []
    for match, scale, kind in zip(matches, scales, kinds, strict=True):
        number = match["number"].replace(",", "")
        decimals = len(number.partition(".")[2])
        figures.append(
            Figure(
                match[0].strip(),
                float(number) * scale,
                kind,
                0.5 * 10**-decimals * scale,
                match["currency"] or "",
                (match.start("number"), match.end()),
                match.start("number") in years,
                bool(match["minus"]),
            )
        )
    return figures


def disagreements(claim: str, passages: Sequence[str]) -> list[str]:
    """Return the figures of a claim that do not follow from its evidence, as written."""
    stated = [figure for passage in passages for figure in figures_of(passage)]
    tokens = {token.casefold() for passage in passages for token in _mixed(passage)}
    fell = set().union(*map(_directions, passages)) == {"down"}
    wrong = [figure.text for figure in figures_of(claim) if not _agrees(figure, stated, fell)]
    wrong += [token for token in _mixed(claim) if token.casefold() not in tokens]
    return wrong


def _mixed(text: str) -> Iterator[str]:
    """Yield tokens of letters and digits (Q3), which stand in the evidence or do not."""
    figures = [match.span() for match in _FIGURE.finditer(text)]
    for match in _MIXED.finditer(text):
        if not any(start < match.end() and match.start() < end for start, end in figures):
            yield match[0]


def _agrees(figure: Figure, stated: Sequence[Figure], fell: bool) -> bool:
    signless = not figure.negative or fell
    for other in stated:
        same_currency = not (figure.currency and other.currency) or (
            figure.currency == other.currency
        )
        same_kind = figure.kind == other.kind and same_currency
        # What is stated may be rounded, not made finer.
        if same_kind and figure.is_close(other.value) and (signless or other.negative):
            return True
    sources = stated[:_MOST]
    # A smaller value after a larger one is a decline.
    pairs = permutations(sources, 2) if signless else ((b, a) for a, b in combinations(sources, 2))
    return any(
        figure.is_close(value) and (signless or value < 0)
        for first, second in pairs
        for value in _derived(figure.kind, first, second)
    )


def _derived(kind: str, first: Figure, second: Figure) -> Iterator[float]:
    if "x" in (first.kind, second.kind) or first.kind != second.kind:
        return
    if first.is_year or second.is_year:
        if first.is_year and second.is_year and kind == "":
            yield first.value - second.value
    elif kind == "%" and first.kind == "%":
        yield first.value - second.value
    elif kind == "%" and second.value:
        yield 100 * (first.value - second.value) / second.value
        yield 100 * first.value / second.value
    elif kind == "x" and second.value:
        yield first.value / second.value
    elif kind == "" and first.kind == "":
        yield first.value + second.value
        yield first.value - second.value


def wrong_date(claim: str, passages: Sequence[str]) -> bool:
    """Return whether a claim gives a figure to a year for which its evidence has another.

    "460 tonnes in 2024", where a passage has 410 in 2024 and 460 in 2025, and none has 460 in 2024.
    """
    dated = [_dated(passage) for passage in passages]
    for figure, year in _dated(claim):
        years = [[y for other, y in pairs if _same(figure, other)] for pairs in dated]
        if any(year in stated for stated in years):
            continue
        for pairs, stated in zip(dated, years, strict=True):
            if stated and any(y == year and other.kind == figure.kind for other, y in pairs):
                return True
    return False


def _same(first: Figure, second: Figure) -> bool:
    return first.kind == second.kind and first.is_close(second.value)


def _dated(text: str) -> list[tuple[Figure, float]]:
    """Return figures with the year that follows them: "410 tonnes in 2024"."""
    return [
        (figure, year.value)
        for figure, year in pairwise(figures_of(text))
        if year.is_year
        and not figure.is_year
        and _IN_YEAR.fullmatch(text, figure.span[1], year.span[0])
    ]


def wrong_direction(claim: str, passages: Sequence[str]) -> bool:
    """Return whether a claim says up where its evidence says only down, or the reverse.

    Also where it says "rose from 9 to 4".
    """
    claimed = _directions(claim)
    if len(claimed) != 1:
        return False
    stated = set().union(*(_directions(passage) for passage in passages))
    if stated and not claimed & stated:
        return True
    return any((end > start) != ("up" in claimed) for start, end in _spans(claim) if start != end)


def _directions(text: str) -> set[str]:
    words = set(re.findall(r"[^\W\d_]+", text.casefold()))
    return {name for name, verbs in (("up", UP), ("down", DOWN)) if words & verbs}


def _spans(claim: str) -> Iterator[tuple[float, float]]:
    """Yield A and B of each "from A to B"."""
    for match in re.finditer(r"\bfrom\b(.{1,60}?)\bto\b(.{1,40})", claim, re.IGNORECASE):
        start, end = figures_of(match[1]), figures_of(match[2])
        if start and end and start[0].kind == end[0].kind:
            # In "from 50 to 56 million" the first number has its scale only beside the second.
            figures = figures_of(match[0])
            yield figures[0].value, figures[len(start)].value
