"""`check_environment`: tools that a model can read, episodes that do not touch each other."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from hf_rlhf.environments.reward import EnvironmentReward
from hf_rlhf.environments.rollouts import call_tools
from hf_rlhf.environments.toolset import Toolset
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.modules import light_import

Call = tuple[str, Mapping[str, Any]]
"""The name and arguments of a tool."""
_ERROR = "{'error': "


@dataclass
class EnvironmentCase:
    """An environment under test, and calls to try."""

    environment: Any
    """A class, or a function that returns an instance."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """Columns of the dataset that `reset` reads."""
    calls: Sequence[Call] = ()
    bad: Sequence[Call] = ()

    @property
    def toolset(self) -> Toolset:
        """The environment as in a run."""
        return Toolset(build=self.environment, name=getattr(self.environment, "__name__", "it"))

    @property
    def columns(self) -> dict[str, Any]:
        """A whole row, as TRL passes it to `reset`."""
        return {"prompt": [{"role": "user", "content": "Begin."}], **self.row}

    def begun(self) -> Any:
        """Return an environment after `reset`. Raises Unusable."""
        try:
            environment = self.toolset.new_environment()
            environment.reset(**self.columns)
        except Exception as error:  # noqa: BLE001 - plugin code may raise anything
            fail(
                f"it cannot begin: {type(error).__name__}: {error}.",
                "define `reset(self, **columns)`; pass row={...} with the columns that it reads.",
                kind=Unusable,
                expected="an instance without arguments, with a `reset` that takes a whole row.",
            )
        return environment

    def results(self, environment: Any, calls: Sequence[Call]) -> list[str]:
        """Return the results of consecutive calls, as the model reads them."""
        functions = {each.__name__: each for each in self.toolset.functions(environment)}
        entries = [
            {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            for name, arguments in calls
        ]
        return [str(call_tools([entry], functions)[0]["content"]) for entry in entries]


def has_documentation(case: EnvironmentCase) -> None:
    """A docstring for `hf-rlhf describe`, and typed arguments: run files are checked."""
    if not inspect.getdoc(case.environment):
        fail("it has no docstring.", "write what it simulates and what its tools are for.")
    for name, parameter in inspect.signature(case.environment).parameters.items():
        if parameter.annotation is parameter.empty:
            fail(f"its argument {name!r} has no type.", f"write `{name}: str`, or what it is.")


def begins_with_any_row(case: EnvironmentCase) -> None:
    """`reset` takes every column by name, and returns None or text for the end of the prompt."""
    case.begun()
    try:
        case.toolset.new_environment().reset(**case.columns, another_column=0)
    except (TypeError, HfRlhfError) as error:
        fail(f"a row with one more column is refused: {error}.", "let `reset` end with `**_`.")


def has_tools_with_types(case: EnvironmentCase) -> None:
    """Each public method is a tool, whose name, types and docstring tell the model how to call it.

    The docstring is Google-style, with a line under `Args:` for each argument.
    """
    functions = case.toolset.functions(case.begun())
    if not functions:
        fail("it has no tools.", "name a method without a leading underscore.")
    for problem in case.toolset.tool_problems():
        fail(problem.what, problem.fix)


def answers_calls(case: EnvironmentCase) -> None:
    """The example calls succeed: the model reads the result as text."""
    for call, result in zip(case.calls, case.results(case.begun(), case.calls), strict=True):
        if result.startswith(_ERROR) or result in ("", "None"):
            fail(f"{call} returned {result!r}.", "return text that helps with the task.")


def explains_failures(case: EnvironmentCase) -> None:
    """A call that cannot be answered raises, with a message from which the model can learn."""
    for call, result in zip(case.bad, case.results(case.begun(), case.bad), strict=True):
        if not result.startswith(_ERROR):
            fail(f"{call} returned {result!r}.", "raise ValueError: failures are counted.")
        if result == str({"error": ""}):
            fail(f"{call} raised without a message.", "say in the error what was expected.")


def reset_forgets(case: EnvironmentCase) -> None:
    """After `reset` an instance answers like a new instance: TRL uses each again and again."""
    environment = case.begun()
    first = case.results(environment, case.calls)
    environment.reset(**case.columns)
    if (again := case.results(environment, case.calls)) != first:
        fail(f"after reset() the calls returned {again}, at first {first}.", "set all in `reset`.")


def shares_nothing(case: EnvironmentCase) -> None:
    """Calls on one instance do not change another: completions are written side by side."""
    alone = case.results(case.begun(), case.calls)
    one, other = case.begun(), case.begun()
    case.results(one, case.calls)
    if (beside := case.results(other, case.calls)) != alone:
        fail(
            f"beside another instance the calls returned {beside}, alone {alone}.",
            "keep no state in the class or the module.",
        )


def scores_or_abstains(case: EnvironmentCase) -> None:
    """`get_reward()`, if there is one, returns a finite number, or None to abstain."""
    environment = case.begun()
    if not hasattr(environment, "get_reward"):
        return
    case.results(environment, case.calls)
    score = EnvironmentReward()([], [], [environment])[0]
    if score is not None and not (isinstance(score, (int, float)) and isfinite(score)):
        fail(f"get_reward() returned {score!r}.", "return a float.")


def light(case: EnvironmentCase) -> None:
    """Importing its module imports nothing heavy."""
    light_import(case.environment)


ENVIRONMENT_CHECKS: tuple[Check, ...] = (
    begins_with_any_row,
    has_documentation,
    has_tools_with_types,
    answers_calls,
    explains_failures,
    reset_forgets,
    shares_nothing,
    scores_or_abstains,
    light,
)


def check_environment(
    environment: Any,
    *,
    row: Mapping[str, Any] | None = None,
    calls: Sequence[Call] = (),
    bad: Sequence[Call] = (),
    skip: Collection[str] = (),
) -> None:
    """Check that an environment keeps the contract of `hf_rlhf.contracts.Environment`.

    Args:
        environment: the class, or a function that returns an instance.
        row: the columns that its `reset` reads.
        calls: (tool, arguments) that succeed one after the other.
        bad: (tool, arguments) that fail.
        skip: names of checks to skip; comment why.

    Raises:
        AssertionError: lists all failures.
    """
    case = EnvironmentCase(environment, row or {}, calls, bad)
    run_checks("environment", environment, case, ENVIRONMENT_CHECKS, skip)
