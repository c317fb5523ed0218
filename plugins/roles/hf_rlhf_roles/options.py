"""What the verbs of a workspace share on the command line."""

import argparse
from pathlib import Path


def positive(text: str) -> int:
    """Read a whole number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def verb_parser(verb: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with `--workspace`."""
    parser = argparse.ArgumentParser(
        prog=f"hf-rlhf roles {verb}", description=description, allow_abbrev=False
    )
    parser.add_argument(
        "--workspace",
        type=Path,
        metavar="DIR",
        default=Path(),
        help="default: the working directory",
    )
    return parser
