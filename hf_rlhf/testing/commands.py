"""`check_command`: a verb that behaves like the others of `hf-rlhf`."""

import contextlib
import inspect
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.testing.checks import Check, Unusable, fail, run_checks
from hf_rlhf.testing.modules import light_import


@dataclass
class CommandCase:
    """A verb under test, and working arguments."""

    main: Callable[[Sequence[str]], int]
    argv: Sequence[str] | None = None

    def call(self, argv: Sequence[str]) -> tuple[Any, str]:
        """Return the exit status as in `hf-rlhf`, and the output."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                status: Any = self.main(list(argv))
            except SystemExit as exit:
                status = exit.code
            except HfRlhfError as error:
                status = 2
                print(error)
            except Exception as error:  # noqa: BLE001 - plugin code may raise anything
                fail(
                    f"{list(argv)} raised {type(error).__name__}: {error}.",
                    "raise HfRlhfError with the cause and the cure.",
                    kind=Unusable,
                    expected="an exit status, or an error of hf_rlhf.errors.",
                )
        return status, output.getvalue()


def has_help(case: CommandCase) -> None:
    """A docstring for `hf-rlhf --help`, and `--help` of its own that exits with 0."""
    if not inspect.getdoc(case.main):
        fail("it has no docstring.", 'write """Say what it does."""')
    status, text = case.call(["--help"])
    if status not in (0, None) or "usage" not in text.lower():
        fail(
            f"`--help` ends with {status} and prints {text[:60]!r}.",
            "parse `argv` with argparse.ArgumentParser(prog='hf-rlhf NAME').",
        )


def refuses_unknown_options(case: CommandCase) -> None:
    """An unknown option is an error with a message that names it and exit status 2."""
    status, text = case.call([*(case.argv or ()), "--no-such-option"])
    # Without working arguments, the first error may be a missing argument.
    has_name = case.argv is None or "no-such-option" in text
    if status in (0, None) or not has_name:
        fail(
            f"`--no-such-option` ends with {status} and prints {text[:60]!r}.",
            "use parse_args, not parse_known_args.",
        )


def returns_a_status(case: CommandCase) -> None:
    """It returns an exit status, and 0 for arguments with which it works."""
    if case.argv is None:
        return
    status, text = case.call(case.argv)
    if type(status) is not int or status != 0:
        fail(
            f"{list(case.argv)} ends with {status!r} and prints {text[:200]!r}.",
            "return 0 at the end; return 1 for what failed.",
        )


def light(case: CommandCase) -> None:
    """Importing its module imports nothing heavy."""
    light_import(case.main)


COMMAND_CHECKS: tuple[Check, ...] = (has_help, refuses_unknown_options, returns_a_status, light)


def check_command(
    main: Callable[[Sequence[str]], int],
    argv: Sequence[str] | None = None,
    *,
    skip: Collection[str] = (),
) -> None:
    """Check that a verb accepts arguments and returns an exit status, as `hf-rlhf` expects.

    Args:
        main: the function, called as `main(argv)`.
        argv: arguments with which it works and ends; None skips this call.
        skip: names of checks to skip; comment why.

    Raises:
        AssertionError: lists all failures.
    """
    run_checks("command", main, CommandCase(main, argv), COMMAND_CHECKS, skip)
