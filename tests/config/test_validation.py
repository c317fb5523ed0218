import enum
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from annotated_types import Ge
from hypothesis import given
from hypothesis import strategies as st

from hf_rlhf.config.validation import (
    InvalidValue,
    bind,
    check_settings,
    validate,
)

if TYPE_CHECKING:
    from nowhere import Tokenizer


class Scheduler(enum.Enum):
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass
class Inner:
    depth: int = 0


@dataclass
class Component:
    needed: str
    count: int = 1
    ratio: float = 0.5
    names: list[str] = field(default_factory=list)
    pair: tuple[float, float] | None = None
    mode: Literal["fast", "slow"] = "fast"
    path: Path | None = None
    scheduler: Scheduler = Scheduler.LINEAR
    inner: Inner | None = None
    at_least: Annotated[int, Ge(1)] = 1
    judge: Any = None
    derived: int = field(default=0, init=False)
    scale: InitVar[float] = 1.0


@dataclass
class Child(Component):
    own: int = 0


@dataclass
class Outer:
    inner: Inner


class Opaque:
    """No run file can hold one."""


def adapter(path: str, *, tokenizer: "Tokenizer", rows: int | None = None) -> None: ...


def open_ended(path: str, **others: Any) -> None: ...


@dataclass
class Tree:
    label: str = ""
    branches: "list[Tree]" = field(default_factory=list)


def place(name: str) -> str:
    return f"f.yaml {name}"


def messages(target: Callable[..., Any], **arguments: Any) -> list[str]:
    return [str(problem) for problem in bind(target, arguments, where=place)[1]]


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "3", 'should be a whole number, not `"3"` (text).'),
        (int, 3.0, "should be a whole number, not `3.0`."),
        (int, True, "not `true`."),
        (float, "high", 'should be a number, not `"high"` (text).'),
        (float, "nan", "should be a number"),
        (str, None, "should be text, not `null`."),
        (str, b"x", "should be text, not `b'x'`."),
        (list[int] | str, ["a"], '`0` should be a whole number, not `"a"` (text).'),
        (dict[str, Inner], {"x": {"depth": "a"}}, "`x.depth` should be a whole number"),
        (Inner, {"dpeth": 1}, "`dpeth` is not a setting here. Did you mean `depth`?"),
        (Tree, {"branches": [{"lable": "x"}]}, "Did you mean `label`?"),
        (tuple[float, float], [1], "`1` is missing."),
        (Literal["fast", "slow"], "slwo", "which is not a choice. Did you mean `slow`?"),
        (Literal["None", True, None], 3, "should be 'None', true or null, not `3`."),
        (Opaque, 3, "takes an object of Python, which a run file cannot hold, not `3`."),
        (Scheduler, 3, "should be 'linear' or 'cosine', not `3`."),
        (Annotated[int, Ge(1)] | None, 0, "greater than or equal to 1"),
        (list[str], {"k": "v" * 500}, "..."),
    ],
)
def test_does_not_fit(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidValue) as error:
        validate(value, annotation)
    assert message in str(error.value)
    assert len(str(error.value)) < 250


def test_binds_what_a_dataclass_takes() -> None:
    arguments = {"needed": "x", "ratio": 2, "pair": [0, 1], "scale": 3, "own": 4}
    bound, problems = bind(Child, arguments, where=place)
    assert problems == []
    assert bound == {"needed": "x", "ratio": 2.0, "pair": (0.0, 1.0), "scale": 3.0, "own": 4}
    assert Child(**bound).pair == (0.0, 1.0)


def test_every_problem_is_reported_with_its_place() -> None:
    assert messages(Component, cuont=1, ratio="high", derived=3) == [
        "f.yaml cuont: `cuont` is not a setting of `Component`. Did you mean `count`?",
        'f.yaml ratio: should be a number, not `"high"` (text).',
        "f.yaml derived: `derived` is not a setting of `Component`. Known: needed, count, ratio, "
        "names, pair, mode, path, scheduler, inner, at_least, judge, scale.",
        "f.yaml needed: is missing. Write `needed: ...`.",
    ]


def test_injected_arguments_are_neither_set_nor_missed() -> None:
    bound, problems = bind(
        adapter, {"path": "x", "tokenizer": 3}, where=place, injected={"tokenizer": object()}
    )
    assert bound == {"path": "x"}
    assert [str(problem) for problem in problems] == [
        "f.yaml tokenizer: is set by the run itself. Remove it."
    ]
    assert bind(adapter, {"path": "x"}, where=place, injected=["tokenizer"])[1] == []
    assert messages(adapter, path="x")[0].startswith("f.yaml tokenizer: is missing.")


@dataclass
class Trainer:
    output_dir: str
    steps: float = 1.0
    scheduler: Scheduler | str = "linear"
    remote: bool = False
    kwargs: dict[str, Any] | str | None = None


@dataclass
class Model:
    name: str | None = None
    remote: bool = False


def test_settings_are_divided_among_the_classes() -> None:
    settings = {"output_dir": "o", "steps": 10, "name": "m", "remote": True, "scheduler": "cosine"}
    (trainer, model), problems = check_settings(settings, [Trainer, Model], where=place)
    assert problems == []
    assert model == {"name": "m", "remote": True}
    assert trainer.pop("scheduler") is Scheduler.COSINE
    assert trainer == {"output_dir": "o", "steps": 10, "remote": True}
    assert type(trainer["steps"]) is int


def test_problems_of_settings() -> None:
    settings = {"remote": "yes", "scheduler": "cosin", "kwargs": [1]}
    (trainer, model), problems = check_settings(settings, [Trainer, Model], where=place)
    assert (trainer, model) == ({}, {})
    assert [str(problem) for problem in problems] == [
        'f.yaml remote: should be true or false, not `"yes"` (text).',
        'f.yaml scheduler: is `"cosin"` (text), which is not a choice. Did you mean `cosine`?',
        "f.yaml kwargs: should be a mapping or text, not `[1]`.",
        "f.yaml output_dir: is missing. Write `output_dir: ...`.",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_any_value_fits_or_is_refused_in_words(value: Any) -> None:
    names = [
        "needed", "count", "ratio", "names", "pair", "mode", "path", "scheduler", "inner",
        "at_least", "scale",
    ]  # fmt: skip
    bound, problems = bind(Component, dict.fromkeys(names, value), where=place)
    wrong = {problem.where.split()[1].split(".")[0] for problem in problems}
    assert sorted([*bound, *wrong]) == sorted(names)
    assert all(str(problem).endswith((".", "?")) for problem in problems)
