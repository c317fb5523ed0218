"""Recognises files that do not hold rows, and tells how to convert them."""

import json
import re
from collections.abc import Callable, Mapping
from gzip import GzipFile
from pathlib import Path
from typing import IO, Any

from hf_rlhf.errors import DataError

_LARGEST_OBJECT = 1 << 26
"""Bytes of a file that is one object which are read to say what it is."""

_ROWS_KEYS = ("data", "rows", "examples", "instances", "train")

FOREIGN: Mapping[str, str] = {
    ".eval": " It is an inspect_ai log: `inspect log dump FILE` writes it as JSON, in which each "
    "entry of `samples` is a row (jq -c '.samples[]').",
    ".traj": " It is a SWE-agent trajectory, whose actions are shell commands, not tool calls.",
}
"""Suffix -> what such a file is, for those that are known and not read."""


def refuse_other_form(line: bytes, path: Path, opened: Callable[[], IO[bytes] | GzipFile]) -> None:
    """Raise DataError if a first line that holds no object begins JSON that is not one a line."""
    begin = line.split(b"{")[0].strip()
    if begin == b"[" and not path.name.lower().removesuffix(".gz").endswith(".json"):
        name = re.sub(r"\.(jsonl|ndjson)(?=(\.gz)?$)", ".json", path.name, flags=re.IGNORECASE)
        raise DataError(
            f"{path}:1: holds a JSON array, but a file with this suffix has one object per line. "
            f"Rename it to {name}."
        )
    if line.strip() == b"{":
        raise DataError(f"{path}:1: {_describe_object(opened)}")


def _describe_object(opened: Callable[[], IO[bytes] | GzipFile]) -> str:
    """Say what an object that goes on over many lines is, and how to write the rows in it."""
    cure = "Write the rows as an array of objects, `[{…}, {…}]` (.json), or as one object per line."
    try:
        with opened() as file:
            value = json.loads(file.read(_LARGEST_OBJECT).removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return f"is not valid JSON: an object that spans many lines begins here. {cure}"
    return f"{what_object(value) or 'holds one object that spans many lines.'} {cure}"


def what_object(value: dict[str, Any]) -> str:
    """Say of an object that holds rows what it is; "" for one that may be a row."""
    inner = list(value.values())
    alike = len(inner) > 1 and all(map(_is_object, inner))
    if alike and len({frozenset(item) for item in inner}) == 1:
        keys = ", ".join(map(repr, list(value)[:2]))
        return (
            f"holds one object of {len(inner)} objects ({keys}, …): "
            "its values look like the rows. Write them as an array, without their keys."
        )
    lists = [item for item in inner if isinstance(item, list) and not any(map(_is_object, item))]
    if len(lists) == len(inner) > 1 and len({len(item) for item in inner}) == 1:
        return "holds one object of lists, a column-oriented table. Write one object per row."
    for key in _ROWS_KEYS:
        if isinstance(value.get(key), list) and all(map(_is_object, value[key])):
            return f"holds one object whose {key!r} looks like the rows. Write only that array."
    return ""


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
