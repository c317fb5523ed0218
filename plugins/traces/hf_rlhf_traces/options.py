"""What the command lines of the verbs share: the parser, options of several, and kinds of numbers.

A kind of number is a `type` for argparse: it refuses what makes no sense for an option, NaN too,
with what was expected, before anything is done.
"""

import argparse
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that takes no part of an option for it, and names the nearest of a misspelt one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments, allow_abbrev=False)

    def options(self) -> list[str]:
        """Return the options, as they are written: `--seed`."""
        return [name for name in self._option_string_actions if name.startswith("--")]

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong, with the nearest right name, and exit with status 2."""
        from hf_rlhf.data import near

        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += near(choice[1], re.findall(r"[\w.]+", choice[2]))
        elif message.startswith("unrecognized arguments: "):
            words = [word.partition("=")[0] for word in message.split()[2:]]
            wrong = [word for word in words if word.startswith("--")]
            message += "".join(near(word, self.options()) for word in wrong)
        super().error(message)


def verb_parser(
    verb: str, description: str, *, folder: str | None = None, epilog: str | None = None
) -> Parser:
    """Return the parser of a verb; with `folder`, its help, for one that works in a folder DIR."""
    parser = Parser(prog=f"hf-rlhf traces {verb}", description=description, epilog=epilog)
    if folder is not None:
        parser.add_argument("folder", type=Path, metavar="DIR", help=folder)
    return parser


def add_overwrite(
    parser: argparse.ArgumentParser, text: str = "make anew what was made with other settings"
) -> None:
    """Add `--overwrite`."""
    parser.add_argument("--overwrite", action="store_true", help=text)


def add_model_repo(parser: argparse.ArgumentParser) -> None:
    """Add `--repo_id`, of a model."""
    parser.add_argument("--repo_id", metavar="YOU/NAME", help="where the model is pushed to")


def whole(least: int, most: float = inf) -> Callable[[str], int]:
    """Return the kind of whole numbers from `least` to `most`."""
    upper = f" to {most:.0f}" if most < inf else " on"
    expected = f"a whole number from {least}{upper}"

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise _not(text, expected) from None
        if not least <= number <= most:
            raise _not(text, expected)
        return number

    return read


def real(expected: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Return the kind of numbers that `fits` says are `expected`: "a number above 0"."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise _not(text, expected) from None
        if not fits(number):
            raise _not(text, expected)
        return number

    return read


def _not(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"is {text!r}, expected {expected}")


count = whole(1)
"""How many: 1 or more."""
seed = whole(0, 2**32 - 1)
"""What Python, NumPy and PyTorch all take as a seed."""
share = real("a share from 0 to 1", lambda number: 0 <= number <= 1)
"""Of a whole."""
above_zero = real("a number above 0", lambda number: 0 < number < inf)
"""Finite."""
not_negative = real("a number from 0 on", lambda number: 0 <= number < inf)
"""Finite."""
