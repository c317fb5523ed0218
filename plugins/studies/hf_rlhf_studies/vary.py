"""What `--vary` and `--seeds` mean: keys of a run file, their values, and the cells they make."""

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf import ConfigError, Problem
from hf_rlhf.config import KeyPath, RunFile, dotted
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf_studies.runs import written

DEFAULT_SEED = 42
"""Of transformers, where the run file says none."""

_NOT_VARIED = {
    "seed": "`--seeds` gives each cell its seeds.",
    "output_dir": "`--out DIR` holds a folder for each run.",
    "plugin": "Make a sweep for each trainer.",
    "publish": "Nothing of a sweep is published; publish the run you choose: `hf-rlhf publish`.",
    "card": "It says what only the author knows, and changes no run.",
    "schema": "It is the version of the format.",
}


@dataclass(frozen=True)
class Axis:
    """One `--vary`: a key of the run file and its values."""

    key: str
    """Dotted, with indices in the place of labels, so that one key has one spelling."""
    path: KeyPath
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Combination:
    """One combination of values: a cell of the sweep, whose runs differ by their seed alone."""

    settings: Mapping[str, Any]
    """Value by dotted key."""

    @property
    def name(self) -> str:
        """A folder's name: readable, safe on every system, the same for the same settings."""
        # In whatever order the keys were varied.
        words = [
            f"{key.rpartition('.')[2]}={written(value)}"
            for key, value in sorted(self.settings.items())
        ]
        readable = re.sub(r"[^A-Za-z0-9=._+-]+", "-", "_".join(words))[:60].strip("-.")
        # Two values may look alike once they are made safe, or differ only in upper case.
        content = json.dumps(dict(self.settings), sort_keys=True)
        return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"

    @property
    def label(self) -> str:
        """What tables call the cell: `citation_weight 0.2, beta 0`."""
        keys = list(self.settings)
        ends = [key.rpartition(".")[2] for key in keys]
        return ", ".join(
            f"{end if ends.count(end) == 1 else key} {written(self.settings[key])}"
            for key, end in zip(keys, ends, strict=True)
        )


def parse_axes(texts: Sequence[str], base: RunFile) -> tuple[list[Axis], list[Problem]]:
    """Return what the `--vary KEY=VALUE,VALUE` options say, and what is wrong with them."""
    axes: list[Axis] = []
    problems: list[Problem] = []
    for text in texts:
        where = f"--vary {text} (command line)"
        try:
            axis = _axis(text, base)
        except ValueError as error:
            problems.append(Problem(where, str(error)))
            continue
        clash = next((other for other in axes if _overlap(other.path, axis.path)), None)
        if clash is not None:
            problems.append(Problem(where, f"`{clash.key}` is varied already.", "Join the two."))
        else:
            axes.append(axis)
    return axes, problems


def _axis(text: str, base: RunFile) -> Axis:
    key, equals, values = text.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise ValueError("is not KEY=VALUE,VALUE.")
    top = key.partition(".")[0]
    if top in _NOT_VARIED:
        raise ValueError(f"`{top}` cannot be varied. {_NOT_VARIED[top]}")
    listed = _values(values)
    changed = base.override([f"--{key}={written(listed[0])}"])
    if new := changed.problems[len(base.problems) :]:
        raise ValueError(f"{new[0].what} {new[0].fix}".strip())
    path = max((p for p, option in changed.overrides.items() if option == f"--{key}"), key=len)
    if over := next((p for p in base.overrides if _overlap(p, path)), None):
        raise ValueError(f"`{dotted(over)}` is also given a value. Leave one out.")
    return Axis(dotted(path), path, tuple(listed))


def _values(text: str) -> list[Any]:
    """Read values between commas as the inside of a YAML list: `a,b` or `[q_proj],[q,v]`."""
    fix = "Brackets and quotes keep a comma: `[q_proj],[q_proj,v_proj]` or `'a, b',c`."
    try:
        document = plain_yaml.load(f"[{text}]", "values")
    except ConfigError:
        raise ValueError(f"`{text}` is not values between commas. {fix}") from None
    if document.problems:
        raise ValueError(f"{document.problems[0].what} {document.problems[0].fix}")
    if not document.value:
        raise ValueError("names no value. Write KEY=VALUE,VALUE.")
    # 0 and 0.0 are one value: two spellings must not make two cells.
    values = [
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
        for value in document.value
    ]
    displayed = [json.dumps(value, sort_keys=True) for value in values]
    if twice := next((text for text in displayed if displayed.count(text) > 1), None):
        raise ValueError(f"the value {twice} is there twice.")
    return values


def _overlap(key_path: KeyPath, other: KeyPath) -> bool:
    shorter = min(len(key_path), len(other))
    return key_path[:shorter] == other[:shorter]


def numeric(values: Iterable[Any]) -> bool:
    """Whether every value is a number, and can be drawn on an axis."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def combinations(axes: Sequence[Axis]) -> list[Combination]:
    """Return every combination of the axes' values, the last axis changing fastest."""
    keys = [axis.key for axis in axes]
    return [
        Combination(dict(zip(keys, values, strict=True)))
        for values in itertools.product(*(axis.values for axis in axes))
    ]


def parse_seeds(text: str, base: RunFile) -> tuple[list[int], list[Problem]]:
    """Return the seeds that `--seeds` means: a count from the run file's on, or a list of them.

    What is wrong with it is returned beside, as by `parse_axes`.
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if "," not in text and numbers and numbers[0] > 0:
        first = base.values.get("seed")
        start = first if isinstance(first, int) else DEFAULT_SEED
        return list(range(start, start + numbers[0])), []
    if "," in text and numbers and min(numbers) >= 0 and len(set(numbers)) == len(numbers):
        return numbers, []
    fix = "Write how many (`--seeds 3`), or which (`--seeds 1,2,3`)."
    return [], [Problem(f"--seeds {text} (command line)", "is not seeds.", fix)]
