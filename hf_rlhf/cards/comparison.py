"""A comparison of several models: as a table, and in the record and on the card of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_rlhf.cards.folder_card import write_card
from hf_rlhf.cards.markdown import cell
from hf_rlhf.storage.files import atomic_write_bytes
from hf_rlhf.storage.record import load_record, write_record

PICTURE = "comparison.png"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(map(cell, headings)) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows])


def terminal_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Any:
    """Return a table for `rich` to print, numbers aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title or None, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=column == 0)
    for row in rows:
        table.add_row(*row)
    return table


def record_comparison(
    folder: Path,
    comparison: Mapping[str, Any],
    picture: tuple[Path, str] | None = None,
) -> None:
    """Write a comparison into the record and onto the card of a run; replace an earlier one.

    Args:
        folder: of the run; the caller holds its lock.
        comparison: `name` of the run's model in the `table` (rows by heading), `notes`, and
            whatever else the record should hold.
        picture: a PNG file and its alternative text.
    """
    record = load_record(folder)
    record.comparison = dict(comparison)
    (folder / PICTURE).unlink(missing_ok=True)
    if picture:
        path, alt = picture
        atomic_write_bytes(folder / PICTURE, path.read_bytes())
        record.comparison["picture"] = {"file": PICTURE, "alt": alt}
    write_record(record, folder)
    write_card(record, folder)
