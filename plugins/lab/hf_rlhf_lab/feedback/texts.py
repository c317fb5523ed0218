"""Read constitutions and rubrics: YAML files with texts by which a model judges responses."""

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


def read_constitution(path: str | None) -> Sequence[NamedText]:
    """Return the principles of a file or the seven default principles. Raises ConfigError."""

    def keys(principles: list[NamedText]) -> None: ...

    return _read(path or str(SHIPPED / "constitution.yaml"), keys, "principles")


def read_rubric(path: str | None) -> Sequence[NamedText]:
    """Return the criteria of a file or the five default criteria. Raises ConfigError."""

    def keys(criteria: list[NamedText]) -> None: ...

    return _read(path or str(SHIPPED / "rubric.yaml"), keys, "criteria")


def listed_texts(texts: Sequence[NamedText]) -> str:
    """Format texts with names as a list for a prompt."""
    return "\n".join(f"- {each.name}: {each.text}" for each in texts)


def _read(path: str, keys: Any, key: str) -> Sequence[NamedText]:
    file = RunFile.read(path)
    arguments, problems = bind(keys, file.values, where=file.where_key)
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
