"""Read constitutions and rubrics: YAML files with texts by which a model judges responses."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen

from hf_rlhf.config import RunFile, bind
from hf_rlhf.errors import ConfigError, Problem

SHIPPED = Path(__file__).parent
Words = Annotated[str, MinLen(1)]


@dataclass(frozen=True)
class NamedText:
    """A principle of a constitution, or a criterion of a rubric."""

    name: Words
    text: Words


Texts = Annotated[list[NamedText], MinLen(1)]


def read_constitution(path: str | None) -> Sequence[NamedText]:
    """Return the principles of a file or the seven default principles. Raises ConfigError."""

    def constitution(principles: Texts) -> None: ...

    return _read(path or str(SHIPPED / "constitution.yaml"), constitution, "principles")


def read_rubric(path: str | None) -> Sequence[NamedText]:
    """Return the criteria of a file or the five default criteria. Raises ConfigError."""

    def rubric(criteria: Texts) -> None: ...

    return _read(path or str(SHIPPED / "rubric.yaml"), rubric, "criteria")


def listed_texts(texts: Sequence[NamedText]) -> str:
    """Format texts with names as a list for a prompt."""
    return "\n".join(f"- {each.name}: {each.text}" for each in texts)


def _read(path: str, keys: Any, key: str) -> Sequence[NamedText]:
    file = RunFile.read(path)
    arguments, problems = bind(keys, file.values, where=file.where_key)
    texts: list[NamedText] = arguments.get(key, [])
    counts = Counter(each.name for each in texts)
    if twice := [name for name, count in counts.items() if count > 1]:
        problems.append(Problem(file.where((key,)), f"has the name {twice[0]!r} twice."))
    if problems := [*file.problems, *problems]:
        raise ConfigError(problems, subject=key)
    return texts
