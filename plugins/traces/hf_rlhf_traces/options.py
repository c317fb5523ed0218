"""Share the parser, common options and number types among the verbs' command lines.

A type refuses meaningless values of its option, NaN included, and states what was expected.
"""

import argparse
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

Number = TypeVar("Number", int, float)


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations that suggests the nearest option for a misspelling."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, allow_abbrev=False)

    def options(self) -> list[str]:
        """Return the options: `--seed`."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Print the error, with the nearest name, and exit with status 2."""
        from hf_rlhf.errors import did_you_mean

        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += did_you_mean(choice[1], re.findall(r"[\w.]+", choice[2]))
        elif message.startswith("unrecognized arguments: "):
            words = [word.partition("=")[0] for word in message.split()[2:]]
            wrong = [word for word in words if word.startswith("--")]
            message += "".join(did_you_mean(word, self.options()) for word in wrong)
        super().error(message)


def verb_parser(
    verb: str, description: str, *, folder: str | None = None, epilog: str | None = None
) -> Parser:
    """Return the parser of a verb; `folder` is the help of its argument DIR, if any."""
    parser = Parser(prog=f"hf-rlhf traces {verb}", description=description, epilog=epilog)
    if folder is not None:
        parser.add_argument("folder", type=Path, metavar="DIR", help=folder)
    return parser


def add_overwrite(
    parser: argparse.ArgumentParser, text: str = "replace what was built with other settings"
) -> None:
    """Add `--overwrite`."""
    parser.add_argument("--overwrite", action="store_true", help=text)


def add_model_repo(parser: argparse.ArgumentParser) -> None:
    """Add `--repo_id` of a model."""
    parser.add_argument("--repo_id", metavar="YOU/NAME", help="where the model is pushed to")


def number_type(
    convert: Callable[[str], Number], expected: str, fits: Callable[[Number], bool]
) -> Callable[[str], Number]:
    """Return the type of numbers that `fits` accepts; `expected` describes them for messages."""

    def read(text: str) -> Number:
        try:
            number = convert(text)
        except ValueError:
            number = None
        if number is None or not fits(number):
            raise argparse.ArgumentTypeError(f"is {text!r}, expected {expected}")
        return number

    return read


def whole_number(least: int, most: float = inf) -> Callable[[str], int]:
    """Return the type of whole numbers from `least` to `most`."""
    upper = f" to {most:.0f}" if most < inf else " on"
    expected = f"a whole number from {least}{upper}"
    return number_type(int, expected, lambda number: least <= number <= most)


def real(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return the type of numbers that `fits` accepts: "a number above 0"."""
    return number_type(float, expected, fits)


count = whole_number(1)
"""1 or more."""
seed = whole_number(0, 2**32 - 1)
"""A seed for Python, NumPy and PyTorch."""
share = real("a share from 0 to 1", lambda number: 0 <= number <= 1)
not_negative = real("a number from 0 on", lambda number: 0 <= number < inf)
