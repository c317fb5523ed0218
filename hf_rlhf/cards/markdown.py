"""Put untrusted text and measured numbers into Markdown so that neither changes its meaning."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from hf_rlhf.storage.record_schema import Estimate

NOT_MEASURED = "not measured"
NOT_RECORDED = "not recorded"

_BACKTICKS = re.compile(r"`+")
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#~$&])")
# Controls, bidirectional overrides and halves of surrogate pairs: what a reader would not see, or
# would see in another order than the model wrote it.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return text with invisible characters written as escapes such as `\\u202e`."""
    unix = text.replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", unix)


def fence(text: str, language: str = "") -> str:
    """Return a fenced code block that `text` cannot close, whatever it holds (CommonMark 4.5)."""
    visible_text = visible(text)
    longest = max((len(run) for run in _BACKTICKS.findall(visible_text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}{language or 'text'}\n{visible_text}\n{bar}"


def excerpt(text: str, limit: int) -> str:
    """Return at most `limit` characters of text, saying how many were left out of the middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def code(value: Any) -> str:
    """Return an inline code span; of what is not text, its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    visible_text = " ".join(visible(text).split())
    if not visible_text:
        return "(empty)"
    longest = max((len(run) for run in _BACKTICKS.findall(visible_text)), default=0)
    bar = "`" * (longest + 1)
    space = " " if visible_text[0] == "`" or visible_text[-1] == "`" else ""
    return f"{bar}{space}{visible_text}{space}{bar}"


def settings_line(settings: Mapping[str, Any], *names: str) -> str:
    """Return `name = value` of those of the settings that have a value, as Markdown."""
    return ", ".join(
        code(f"{name} = {short(settings[name])}")
        for name in names
        if settings.get(name) is not None
    )


def short(value: Any) -> str:
    """Return a setting's value as text: floats rounded to six digits, names without quotes."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain(value: Any) -> str:
    """Return text on one line in which no character is Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(str(value)).split()))


def cell(text: str) -> str:
    """Return Markdown for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def number(value: Any) -> str:
    """Return a measured number at a readable precision, or `not measured`."""
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
    """Return a total, which may come as a float, without decimals that mean nothing."""
    return number(int(value) if isinstance(value, float) and value.is_integer() else value)


def share(value: float | None) -> str:
    """Return a share in [0, 1] as a percentage, or `not measured`."""
    return NOT_MEASURED if value is None else f"{100 * value:.1f}%"


def interval(estimate: Estimate | Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """Return `mean [low, high]` of an estimate or its JSON, or `not measured`.

    A difference is `signed`.

    Of one row, or of rows that are all the same, the interval would have no width and look like
    certainty: the reason stands in its place.
    """
    if estimate is None:
        return NOT_MEASURED
    value = as_estimate(estimate)
    if value.mean is None:
        return NOT_MEASURED

    def text(value: float | None) -> str:
        return "" if value is None else f"{'+' if signed and value > 0 else ''}{number(value)}"

    if reason := no_interval(value):
        return f"{text(value.mean)} ({reason})"
    return f"{text(value.mean)} [{text(value.low)}, {text(value.high)}]"


def as_estimate(estimate: Estimate | Mapping[str, Any]) -> Estimate:
    """Return an estimate, of which JSON may be given."""
    return estimate if isinstance(estimate, Estimate) else Estimate(**estimate)


def no_interval(estimate: Estimate) -> str:
    """Return why an estimate has no interval to show; empty where it has one."""
    if estimate.n == 1:
        return "one row"
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"all {estimate.n:,} alike" if estimate.n and estimate.low == estimate.high else ""


def duration(seconds: float | None) -> str:
    """Return `1 h 02 min` and the like."""
    if seconds is None:
        return NOT_RECORDED
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as such, where YAML would put blank lines in between."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(value: Any) -> str:
    """Return YAML, keys sorted."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=True, allow_unicode=True, width=100)
    return text.rstrip()


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return `1 step`, `2 steps`."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def words(name: str) -> str:
    """Return the name of a field as words of a sentence: `empty_response` -> `empty response`."""
    return " ".join(name.replace("_", " ").split())


def listed(items: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(part for part in (", ".join(items[:-1]), *items[-1:]) if part)


FILTERS = {
    item.__name__: item
    for item in (
        *(cell, code, count, duration, excerpt, fence, interval, listed, number, plain, share),
        as_yaml,
    )
}
