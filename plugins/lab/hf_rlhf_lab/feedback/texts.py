"""Constitutions and rubrics: named texts in a YAML file, by which a model judges responses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_rlhf.config import RunFile, bind
from hf_rlhf.errors import ConfigError, Problem

SHIPPED = Path(__file__).parent


@dataclass(frozen=True)
class NamedText:
    """A principle of a constitution, or a criterion of a rubric."""

    name: str
    text: str


@dataclass(frozen=True)
class Constitution:
    """The file of a constitution."""

    principles: list[NamedText]


@dataclass(frozen=True)
class Rubric:
    """The file of a rubric."""

    criteria: list[NamedText]


def read_constitution(path: str | None) -> Sequence[NamedText]:
    """Return the principles of a file, or the seven that are shipped. Raises ConfigError."""
    file = Path(path) if path else SHIPPED / "constitution.yaml"
    return _read(file, Constitution, "principles")


def read_rubric(path: str | None) -> Sequence[NamedText]:
    """Return the criteria of a file, or the five that are shipped. Raises ConfigError."""
    return _read(Path(path) if path else SHIPPED / "rubric.yaml", Rubric, "criteria")


def listed_texts(texts: Sequence[NamedText]) -> str:
    """Return named texts as a list for a prompt."""
    return "\n".join(f"- {each.name}: {each.text}" for each in texts)


def _read(path: Path, target: Any, key: str) -> Sequence[NamedText]:
    file = RunFile.read(path)
    arguments, problems = bind(target, file.values, where=file.where_key)
    texts: list[NamedText] = arguments.get(key, [])
    problems = [*file.problems, *problems]
    if key in arguments and not texts:
        problems.append(Problem(file.where((key,)), "is empty.", "List at least one {name, text}."))
    counts = Counter(each.name for each in texts)
    for index, each in enumerate(texts):
        where = file.where((key, index))
        if not each.name.strip() or not each.text.strip():
            problems.append(Problem(where, "has an empty name or text.", "Write both."))
        elif counts[each.name] > 1:
            problems.append(Problem(where, f"the name {each.name!r} is used twice.", "Rename one."))
    if problems:
        raise ConfigError(problems, subject=key)
    return texts
