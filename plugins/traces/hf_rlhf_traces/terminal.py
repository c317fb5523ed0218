"""Output in the terminal."""

import os
import sys


def no_bars_of_datasets() -> None:
    """Turn off the bars of `datasets`, which is not imported yet, outside a terminal."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
