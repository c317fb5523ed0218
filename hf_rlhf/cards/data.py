"""The data section of a card: the arguments of the dataset adapter, and its report."""

from collections.abc import Mapping
from typing import Any

from hf_rlhf.config.yaml import dump_yaml
from hf_rlhf.formatting import cell, code, count, fence, plain, words
from hf_rlhf.storage.record_schema import DataSection

SHORT = 160
"""Most characters of arguments within a sentence; longer arguments become YAML below."""
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
    "texts_as_turns": "rows with texts that were read as turns",
    "commit": "commit of the source",
}
"""Labels for report keys that are unclear by themselves."""


def arguments(values: Mapping[str, Any]) -> str:
    """Return what follows "Read by the adapter X": its arguments as Markdown, or a full stop."""
    if not values:
        return "."
    inline = code(dict(values))
    if len(inline) <= SHORT:
        return f" with {inline}."
    return f", with:\n\n{fence(as_yaml(dict(values)), 'yaml')}"


def data_rows(data: DataSection) -> list[tuple[str, str]]:
    """Return the rows of each split and the adapter's report, as (label, Markdown) cells.

    Omitted are empty values, and the adapter's splits and rejected rows if they repeat the splits
    and dropped rows.
    """
    report = dict(data.report)
    if report.get("splits") == data.splits:
        del report["splits"]
    if report.get("rejected") == report.get("dropped"):
        report.pop("rejected", None)
    rows = [(f"rows in {code(split)}", count(size)) for split, size in data.splits.items()]
    for key, value in report.items():
        if value in (None, [], "") or (value == {} and key != "dropped"):
            continue
        label = plain(_LABELS.get(key) or words(key))
        nested = isinstance(value, Mapping) and bool(value)
        if nested and all(isinstance(each, Mapping) for each in value.values()):
            # For example for each source of a mixture.
            entries = {f"{label}, {code(name)}": each for name, each in value.items()}
        else:
            entries = {label: value}
        rows += [(name, _as_text(each)) for name, each in entries.items()]
    return [(cell(label), cell(text)) for label, text in rows]


def as_yaml(value: Any) -> str:
    """Return YAML with multi-line text as blocks."""
    return dump_yaml(value).rstrip()


def _as_text(value: Any) -> str:
    if isinstance(value, Mapping):
        filled = {key: each for key, each in value.items() if each not in (None, [], "", {})}
        entries = [f"{plain(words(name))}: {_as_text(entry)}" for name, entry in filled.items()]
        return "; ".join(entries) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return count(value)
    if isinstance(value, str):
        # A sentence is plain text; a name or a path is code.
        return plain(value) if " " in value.strip() else code(value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return ", ".join(map(code, value))
    return code(value)
