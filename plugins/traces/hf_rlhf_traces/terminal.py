"""What is shown in the terminal: tables, and how far something is."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_WIDTH = 120
"""Of a table where there is no terminal to fit into."""


def console() -> "Console":
    """Return what tables are printed on."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def no_bars_of_datasets() -> None:
    """Have `datasets`, which is not imported yet, draw no bars where there is no terminal."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")


def bars() -> "Progress":
    """Return bars on standard error, which say nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    stderr = Console(stderr=True)
    return Progress(console=stderr, disable=not stderr.is_terminal)
