"""Format numbers, intervals, tables and untrusted text for terminals and Markdown."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from hf_rlhf.storage.record_schema import Estimate

NOT_MEASURED = "not measured"
NOT_RECORDED = "not recorded"

_BACKTICKS = re.compile(r"`+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#~$&])")
# Control characters, bidirectional overrides and lone surrogates: invisible to a reader, or
# displayed in another order than the model wrote.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_HEADS = {"error": 31, "note": 33, "warning": 33}
"""First word of a message -> ANSI colour code."""
_SIGN_TEST = 6
"""Rows from which a common sign is a change by the sign test: 2 / 2^6 < 0.05."""


def visible(text: str) -> str:
    """Return text with invisible characters written as escapes (`\\u202e`)."""
    unix = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", unix)


def fence(text: str, language: str = "text") -> str:
    """Return a fenced code block that `text` cannot close (CommonMark 4.5)."""
    content = visible(text)
    bar = "`" * max(3, _longest_backticks(content) + 1)
    return f"{bar}{language}\n{content}\n{bar}"


def _longest_backticks(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def excerpt(text: str, limit: int) -> str:
    """Shorten text to `limit` characters by a cut in the middle that states its length."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def code(value: Any) -> str:
    """Return an inline code span; values other than text are formatted as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    content = " ".join(visible(text).split())
    if not content:
        return "(empty)"
    bar = "`" * (_longest_backticks(content) + 1)
    space = " " if "`" in (content[0], content[-1]) else ""
    return f"{bar}{space}{content}{space}{bar}"


def plain(value: Any) -> str:
    """Return single-line text with all Markdown and HTML escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(str(value)).split()))


def cell(text: str) -> str:
    """Return Markdown for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: int | None = None
) -> str:
    """Return a Markdown table; columns from index `left` on are right-aligned."""
    left = len(headings) if left is None else left
    rule = "|" + "---|" * left + "--:|" * (len(headings) - left)
    heads, *lines = ["| " + " | ".join(map(cell, row)) + " |" for row in (headings, *rows)]
    return "\n".join([heads, rule, *lines])


def terminal_message(text: str, stream: TextIO) -> str:
    """Return a message for a stream; its first word is coloured on a terminal.

    Messages may quote a policy, a row or a server, so control characters are escaped.
    """
    text = visible(text)
    if not stream.isatty():
        return text
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    codes = "|".join(_HEADS)
    return re.sub(rf"^({codes}):", lambda match: f"\x1b[{_HEADS[match[1]]}m{match[0]}\x1b[0m", text)


def terminal_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> Any:
    """Return a `rich` table with all columns but the first right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=column == 0)
    for row in rows:
        table.add_row(*map(visible, row))
    return table


def print_table(
    console: Any, headings: Sequence[str], rows: Sequence[Sequence[str]], title: str, fixed: int = 1
) -> None:
    """Print a table, split into several if too wide for the console; numbers are never cut.

    Text in brackets is first moved below its number. Each part repeats the `fixed` first columns.
    """

    def table(columns: Sequence[int], heading: str = "") -> Any:
        names = [headings[each] for each in columns]
        return terminal_table(names, [[row[each] for each in columns] for row in rows], heading)

    def fits(columns: Sequence[int]) -> bool:
        unlimited = console.options.update(width=10_000)
        return bool(console.measure(table(columns), options=unlimited).maximum <= console.width)

    if not fits(range(len(headings))):
        rows = [
            [*row[:fixed], *(re.sub(r" ([\[(])", r"\n\1", text) for text in row[fixed:])]
            for row in rows
        ]
    heading, shown = title, [*range(fixed)]
    for column in range(fixed, len(headings)):
        if len(shown) > fixed and not fits([*shown, column]):
            console.print(table(shown, heading))
            heading, shown = "(continued)", [*range(fixed)]
        shown.append(column)
    console.print(table(shown, heading))


def number(value: Any) -> str:
    """Return a measured number with readable precision, or `not measured`."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0005:
        return f"{value:.1e}"
    places = 3 if size < 10 else 1 if size < 1000 else 0
    return f"{value:,.{places}f}"


def count(value: Any) -> str:
    """Return a total (possibly a float) without meaningless decimals."""
    return number(int(value) if isinstance(value, float) and value.is_integer() else value)


def share(value: float | None) -> str:
    """Return a share in [0, 1] as a percentage, or `not measured`."""
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def interval(estimate: "Estimate | Mapping[str, Any] | None", *, signed: bool = False) -> str:
    """Return `mean [low, high]` of an estimate or its JSON, or `not measured`.

    For a single row, a single question or all equal rows, the interval would have zero width and
    suggest certainty: the reason is printed instead. A difference is `signed`.
    """
    value = as_estimate(estimate)
    if value.mean is None:
        return NOT_MEASURED

    def text(value: float | None) -> str:
        return f"{'+' if signed and value is not None and value > 0 else ''}{number(value)}"

    if reason := missing_interval(value):
        several = isinstance(estimate, Mapping) and estimate.get("values", 1) > 1
        reason = "one question" if several and value.n == 1 else reason
        return f"{text(value.mean)} ({reason})"
    return f"{text(value.mean)} [{text(value.low)}, {text(value.high)}]"


def as_estimate(estimate: "Estimate | Mapping[str, Any] | None") -> "Estimate":
    """Return an estimate from an estimate or its JSON; empty for None."""
    from hf_rlhf.storage.record_schema import Estimate

    return estimate if isinstance(estimate, Estimate) else Estimate(**(estimate or {}))


def missing_interval(estimate: "Estimate") -> str:
    """Return why an estimate has no interval; "" if it has."""
    if estimate.n == 1:
        return "one row"
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"all {estimate.n:,} alike" if estimate.n and estimate.low == estimate.high else ""


def verdict(difference: "Estimate | Mapping[str, Any] | None") -> str:
    """Return `rose`, `fell` or `no change shown` by the interval of a paired difference."""
    value = as_estimate(difference)
    if value.low is None or value.high is None:
        return "not compared"
    if value.n == 1:
        return "one row, no interval"
    if value.low == value.high and (value.n or 0) < _SIGN_TEST:
        return "no change shown"
    if value.low > 0:
        return "rose"
    return "fell" if value.high < 0 else "no change shown"


def duration(seconds: float | None) -> str:
    """Return `1 h 02 min` and the like."""
    if seconds is None:
        return NOT_RECORDED
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return `1 step`, `2 steps`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def words(name: str) -> str:
    """Return a field name as words: `empty_response` -> `empty response`."""
    return " ".join(name.replace("_", " ").split())


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def settings_line(settings: Mapping[str, Any], *names: str) -> str:
    """Return `name = value` for each setting that is not None, as Markdown."""
    return ", ".join(
        code(f"{name} = {short(settings[name])}")
        for name in names
        if settings.get(name) is not None
    )


def short(value: Any) -> str:
    """Return a setting's value as text: floats rounded to six digits, names without quotes."""
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
