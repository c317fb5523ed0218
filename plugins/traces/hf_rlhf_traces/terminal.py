"""Output in the terminal."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 120
"""Width of a table outside a terminal."""


def console() -> "Console":
    """Return the console for tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def no_bars_of_datasets() -> None:
    """Turn off the bars of `datasets`, which is not imported yet, outside a terminal."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
