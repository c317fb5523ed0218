"""What `hf-rlhf traces read` shows at its end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_rlhf.data import near
from hf_rlhf_traces.outcomes import NOTED, REJECTED
from hf_rlhf_traces.readers.search import KNOWN
from hf_rlhf_traces.store import REJECTS


def show_read(report: Mapping[str, Any], out: Path) -> None:
    """Print what became of the rows: the report of `read`, as a table."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"Read into {escape(str(out))}", title_justify="left")
    table.add_column("what")
    table.add_column("count", justify="right")
    table.add_column("meaning", overflow="fold")
    for what, count, meaning in _lines(report):
        table.add_row(escape(what), f"{count:,}", escape(meaning))
    console = Console()
    console.print(table)
    for place in report["places"].get("file_damaged", []):
        console.print(f"Part of the input is lost: {place}", soft_wrap=True, markup=False)
    if report["rejected"]:
        said = f"Rejected rows, with places and reasons: {out / REJECTS}"
        console.print(said, soft_wrap=True, markup=False)
    for source in report["sources"]:
        if source.get("commit", "") is None:
            said = f"{source['path']}: the Hub could not be asked; what is in the cache was read."
            console.print(said, soft_wrap=True, markup=False)
    if report.get("done_before"):
        console.print("Read before, with the same settings, from the same files: nothing to do.")


def _lines(report: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    sides = report["questions"]
    yield "rows", report["rows"], "= traces + rejected"
    shares = f"of {sides['train']:,} training and {sides['validation']:,} validation questions"
    yield "traces", report["traces"], shares
    for reason, count in report["rejected"].items():
        yield f"rejected: {reason}", count, REJECTED[reason]
    for form, count in report["forms"].items():
        yield f"form: {form}", count, ""
    for kind, count in report["steps"].items():
        yield f"steps: {kind}", count, ""
    for kind, count in report["answers"].items():
        yield f"answers: {kind}", count, "as the source calls them"
    for kind, count in report["unknown"].items():
        yield f"unknown: {kind}", count, f"steps of a type that is not read{near(kind, KNOWN)}"
    for note, count in report["noted"].items():
        yield note, count, NOTED.get(note.split(".")[0], "")
