"""How far something is, as bars in the terminal."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def bars() -> "Progress":
    """Return bars on standard error, which say nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, disable=not console.is_terminal)
