"""Run checks on a component, and report their failures.

A check takes a case (the component and its inputs) and raises Unmet. Its docstring is the rule, and
its name is used in `skip`.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

Check = Callable[[Any], None]


class Unmet(AssertionError):
    """A rule is broken."""

    def __init__(self, problem: str, expected: str = "", cure: str = "") -> None:
        super().__init__(problem)
        self.expected, self.cure = expected, cure


class Unusable(Unmet):
    """The component is so broken that later checks would only repeat it."""


def fail(problem: str, cure: str, *, kind: type[Unmet] = Unmet, expected: str = "") -> NoReturn:
    """Raise `kind`. `expected` defaults to the running check's docstring."""
    raise kind(problem, expected, cure)


def run_check(check: Check, case: Any) -> None:
    """Run a check. Raises Unmet with the observation, the expectation and the fix."""
    try:
        check(case)
    except Unmet as unmet:
        rule = " ".join((inspect.getdoc(check) or "").split())
        expected = unmet.expected or rule
        raise type(unmet)(f"{unmet} Expected: {expected} Cure: {unmet.cure}") from unmet.__cause__


def run_checks(
    kind: str, component: Any, case: Any, checks: Sequence[Check], skip: Collection[str]
) -> None:
    """Run every check on a case. Raises AssertionError that lists all failures.

    Raises ValueError for an unknown name in `skip`.
    """
    names = [name_of(check) for check in checks]
    if unknown := sorted(set(skip) - set(names)):
        raise ValueError(f"no check is named {', '.join(unknown)}; there are: {', '.join(names)}")
    failures = []
    selected = [check for check in checks if name_of(check) not in skip]
    for check in selected:
        try:
            run_check(check, case)
        except Unmet as unmet:
            failures.append(f"  - {name_of(check)}: {unmet}")
            if isinstance(unmet, Unusable):
                break
    if failures:
        name = getattr(component, "__name__", type(component).__name__)
        head = f"{kind} {name} fails {len(failures)} of {len(selected)} checks:"
        raise AssertionError("\n".join([head, *failures]))


def name_of(check: Check) -> str:
    """Return the name of a check for `skip` and test ids."""
    return str(getattr(check, "__name__", check))
