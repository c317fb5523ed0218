"""What a card says of the data: the adapter's arguments and its report, in words."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.cards.markdown import as_yaml, cell, code, count, fence, plain, words
from hf_rlhf.storage.record_schema import DataSection

SHORT = 160
"""Characters of arguments that are shown within a sentence; more are shown as YAML below it."""
_LABELS = {
    "schema_why": "why this schema",
    "format": "format of the rows",
    "kept": "rows kept",
    "dropped": "rows left out",
    "rejected": "rows rejected as not in order",
    "splits": "rows of each split",
    "held_out": "held-out rows",
    "prompt_tokens": "tokens of a prompt",
    "turn_keys_left_out": "keys of turns left out",
    "commit": "commit of the source",
}
"""Names that the adapters of this project give, where their words alone would not say it."""


def arguments(values: Mapping[str, Any]) -> str:
    """Return what follows "Read by the adapter X": its arguments as Markdown, or a full stop."""
    if not values:
        return "."
    inline = code(dict(values))
    if len(inline) <= SHORT:
        return f" with {inline}."
    return f", with:\n\n{fence(as_yaml(dict(values)), 'yaml')}"


def data_rows(data: DataSection) -> list[tuple[str, str]]:
    """Return the rows of each split, and what the adapter reported, as (label, Markdown) cells.

    Left out is what is empty or has been said: the splits, and rejected rows where no others were
    dropped.
    """
    report = dict(data.report)
    if report.get("splits") == data.splits:
        del report["splits"]
    if report.get("rejected") == report.get("dropped"):
        report.pop("rejected", None)
    rows = [(f"rows in {code(split)}", count(size)) for split, size in data.splits.items()]
    for key, value in report.items():
        if value is None or (not value and isinstance(value, (list, str))):
            continue
        if value == {} and key != "dropped":
            continue
        rows.append((plain(_LABELS.get(key) or words(key)), _as_text(value)))
    return [(cell(label), cell(text)) for label, text in rows]


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [f"{plain(words(name))}: {_as_text(item)}" for name, item in value.items()]
        return "; ".join(parts) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return count(value)
    if isinstance(value, str):
        # A sentence reads as one; a name or a path is shown as it is written.
        return plain(value) if " " in value.strip() else code(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(code(item) for item in value)
    return code(value)
