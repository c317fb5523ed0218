"""Report lines on chat rows: rows and parts of rows that are not trained on."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.data.rejected import format_counts


def report_lines(
    report: Mapping[str, Any], rejected_rows: Path | None, kept_columns: Sequence[str]
) -> Iterator[str]:
    """Yield which rows and parts of rows are dropped, and which calls are only context."""
    if report["dropped"]:
        where = f"; bad rows are in {rejected_rows}" if rejected_rows and report["rejected"] else ""
        yield (
            f"{report['kept']} of {report['rows_read']} rows kept; left out: "
            f"{format_counts(report['dropped'])}{where}."
        )
    keys = [f"{key} ({count})" for key, count in report["turn_keys_left_out"].items()]
    parts = {
        "columns kept for rewards": kept_columns,
        "columns left out": report["columns_left_out"],
        "keys of turns left out": keys,
    }
    listed = [f"{name}: {', '.join(values)}" for name, values in parts.items() if values]
    if listed:
        yield f"not part of prompts and answers: {'; '.join(listed)}."
    if rows := report.get("texts_as_turns"):
        yield f"in {rows} rows, texts were read as turns; `text: true` keeps them as texts."
    if (calls := report.get("tool_calls")) and report["form"] != "prompts":
        partly = report["form"] == "sft" and calls["learned"] < calls["read"]
        cure = ": `target: final` learns those of a row's last turn, `target: every` all" * partly
        yield f"{calls['learned'] or 'none'} of {calls['read']} tool calls learned{cure}."
