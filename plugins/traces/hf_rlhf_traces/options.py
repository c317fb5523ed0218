"""Share the parser, common options and number types among the verbs' command lines.

A type refuses meaningless values of its option, NaN included.
"""

import argparse
import json
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


def json_object(text: str) -> dict[str, Any]:
    """Read an object of settings."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError('is not an object of settings, such as {"timeout": 60}')
    return fields


def number_type(
    kind: Callable[[str], Number], least: float, most: float = inf
) -> Callable[[str], Number]:
    """Return the type of numbers from `least` to `most`."""

    def read(text: str) -> Number:
        value = kind(text)
        if not least <= value <= most or value == inf:
            raise argparse.ArgumentTypeError(f"is {text!r}, expected {least:g} to {most:g}")
        return value

    read.__name__ = kind.__name__  # for the message of argparse
    return read


count = number_type(int, 1)
"""1 or more."""
seed = number_type(int, 0, 2**32 - 1)
"""A seed for Python, NumPy and PyTorch."""
share = number_type(float, 0, 1)
ratio = number_type(float, 1e-6, 0.999999)  # something on both sides
not_negative = number_type(float, 0)
