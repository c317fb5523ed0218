"""The report as a table in the terminal."""

from pathlib import Path

from hf_rlhf_lab.validation.report import MARKDOWN_NAME, Report

_STYLES = {"pass": "green", "fail": "bold red", "not measurable": "yellow"}


def show(report: Report, folder: Path) -> None:
    """Print the result of each check."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "check", "result", "what was measured", title=report.headline, title_justify="left"
    )
    for check in report.checks:
        style = _STYLES[check.verdict]
        table.add_row(check.name, f"[{style}]{check.verdict}[/]", check.summary)
    console = Console()
    console.print(table)
    console.print(f"Report: {folder / MARKDOWN_NAME}", markup=False, soft_wrap=True)
