"""The format of a store: given once, by a file or options, and the same for all that is made there.

It is a step of the store, `format`, made by the first verb that needs it.
"""

import argparse
from dataclasses import fields
from pathlib import Path

from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.errors import ConfigError, Problem
from hf_rlhf_traces.format import Format
from hf_rlhf_traces.store import Store

_PREFIX = "format."


def add_format_options(parser: argparse.ArgumentParser) -> None:
    """Add `--format FILE` and an option for each field: `--format.think reasoning`."""
    group = parser.add_argument_group(
        "format",
        "Tags and templates; a folder has one format for all that is made in it. Fields, as in the "
        "file: " + ", ".join(one.name for one in fields(Format)) + ". Each is an option, too, as "
        "--format.think TEXT.",
    )
    group.add_argument("--format", type=Path, metavar="FILE.yaml", help="fields that differ")
    for one in fields(Format):
        group.add_argument(f"--{_PREFIX}{one.name}", metavar="TEXT", help=argparse.SUPPRESS)


def asked_format(chosen: argparse.Namespace) -> Format | None:
    """Return the format that is asked for, or None if nothing is said of it.

    Raises ConfigError, with every field that is wrong.
    """
    options = {
        name.removeprefix(_PREFIX): value
        for name, value in vars(chosen).items()
        if name.startswith(_PREFIX) and value is not None
    }
    if chosen.format is None and not options:
        return None
    return Format.of({**_in_file(chosen.format), **options}, str(chosen.format or "options"))


def _in_file(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    document = plain_yaml.load(plain_yaml.read(path), str(path))
    if document.problems:
        raise ConfigError(document.problems)
    if not isinstance(document.value, dict):
        fix = "Write fields of the format: `think: reasoning`."
        raise ConfigError([Problem(str(path), "holds no fields.", fix)])
    return document.value


def store_format(store: Store, asked: Format | None = None, *, overwrite: bool = False) -> Format:
    """Return the format of a store, which is `asked`, or the usual, where it has none yet.

    Raises RunFolderError, with the difference, when it has another and `overwrite` is not set.
    With it, all that was made in the other format is stale.
    """
    if asked is None:
        asked = Format.of(store.settings("format"), f"{store.folder}: format")
    if store.check("format", asked.settings(), overwrite=overwrite) != "done":
        with store.making("format", asked.settings()):
            pass
    return asked
