"""How a list of checks is run on a component, and how what they find is said."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

Check = Callable[[Any], None]
"""Takes the case of one component; raises Unmet. Its name is what `skip` names."""


class Unmet(AssertionError):
    """One expectation is not met."""


class Unusable(Unmet):
    """It is not met so badly that the checks which follow would only repeat it."""


def fail(what: str, expected: str, cure: str, kind: type[Unmet] = Unmet) -> NoReturn:
    """Raise `kind`, with what was seen, what is expected, and what to do."""
    raise kind(f"{what} Expected: {expected} Cure: {cure}")


def run_checks(title: str, case: Any, checks: Sequence[Check], skip: Collection[str] = ()) -> None:
    """Run every check on a case. Raises AssertionError that lists all that are not met.

    Raises ValueError for a name in `skip` that no check has.
    """
    known = [name_of(check) for check in checks]
    if unknown := sorted(set(skip) - set(known)):
        raise ValueError(f"no check is named {', '.join(unknown)}; there are: {', '.join(known)}")
    failures = []
    requested = [check for check in checks if name_of(check) not in skip]
    for check in requested:
        try:
            check(case)
        except Unmet as unmet:
            failures.append(f"  - {name_of(check)}: {unmet}")
            if isinstance(unmet, Unusable):
                break
    if failures:
        head = f"{title} fails {len(failures)} of {len(requested)} checks:"
        raise AssertionError("\n".join([head, *failures]))


def name_of(check: Check) -> str:
    """Return the name of a check, as `skip` and test ids have it."""
    return str(getattr(check, "__name__", check))
