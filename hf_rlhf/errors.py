"""Errors of hf_rlhf. Every message states the problem, its position and the fix.

* HfRlhfError
  + PluginError
    - UnknownPlugin       nothing installed offers that name
    - AmbiguousPlugin     two installed packages offer that name
    - BrokenPlugin        a package offers that name but its code does not import
  + ConfigError           a run file or its overrides are wrong; carries every `Problem`
  + DataError             a row or a file of data is wrong; names file, row and field
  + RewardError           a reward raised, or returned something that is not a list of numbers
  + DriftError            the monitor stopped a training whose reward is exploited
  + RolloutError          an environment cannot begin
  + JudgeError            a judge cannot be used, or failed too often
  + ModelError            a model, adapter or tokenizer cannot be used
  + RunFolderError        an output folder is locked, read-only, or belongs to another run
    - DiskError           a disk is full, over quota or read-only
  + PublishError          a push or pull failed; says what is missing and how to finish

`PluginError` and `ConfigError` are raised before any weights are loaded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


class HfRlhfError(Exception):
    """Base class of all errors; the command line prints them without a traceback."""


class PluginError(HfRlhfError):
    """A name could not be resolved to code."""


class UnknownPlugin(PluginError):
    """No installed package offers the name."""


class AmbiguousPlugin(PluginError):
    """Two installed packages offer the name."""


class BrokenPlugin(PluginError):
    """A package offers the name, but its code cannot be imported."""


@dataclass(frozen=True)
class Problem:
    """A problem with a run: its position, its description and its fix."""

    where: str
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" {self.fix}" if self.fix else "")


def suggest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`, or None."""
    import difflib  # it imports `re`, which `hf-rlhf list` does not need

    candidates = sorted(set(names))
    spelled = name.replace("-", "_").lower()
    for text in dict.fromkeys((spelled, name)):
        if close := difflib.get_close_matches(text, candidates, n=1, cutoff=0.65):
            return close[0]
    # Two swapped letters are a large part of a short name: `stf` for `sft`.
    return next((each for each in candidates if sorted(each) == sorted(spelled)), None)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def causes(error: BaseException) -> list[BaseException]:
    """Return an error, its causes and contexts, and members of exception groups, nearest first."""
    found: list[BaseException] = []
    stack: list[BaseException | None] = [error]
    while stack:
        cause = stack.pop()
        if cause is not None and cause not in found:
            found.append(cause)
            stack += [cause.__context__, cause.__cause__]  # a stack: the cause is popped first
            if isinstance(cause, BaseExceptionGroup):
                stack += cause.exceptions
    return found


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the most similar of `names`, or an empty string."""
    close = suggest(name, names)
    return f" (did you mean {close!r}?)" if close else ""


def problems_of_several(problems: Mapping[str, Sequence[Problem]]) -> list[Problem]:
    """Merge the problems of several runs, prefixed by run names unless all runs have them."""
    having: dict[Problem, list[str]] = {}
    for name, each in problems.items():
        for problem in each:
            having.setdefault(problem, []).append(name)
    return [
        problem
        if len(problems) > 1 and len(names) == len(problems)
        else replace(problem, where=f"{'; '.join(names)}: {problem.where}")
        for problem, names in having.items()
    ]


class ConfigError(HfRlhfError):
    """A run file or its overrides are invalid. `problems` lists all, not only the first.

    `hint` is a line on the file itself, `subject` the thing that it configures.
    """

    def __init__(self, problems: Sequence[Problem], hint: str = "", subject: str = "run") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the {subject}'s configuration:"
        lines = [head, *(f"  - {problem}" for problem in self.problems), *[hint] * bool(hint)]
        super().__init__("\n".join(lines))
        self._given = (self.problems, hint, subject)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: other processes raise the main process's error again."""
        return type(self), self._given


class DataError(HfRlhfError):
    """A row or a data file is invalid."""


class RewardError(HfRlhfError):
    """A reward raised, or did not return a number or None for each completion."""


class DriftError(HfRlhfError):
    """The monitor stopped training because the reward is exploited; the run is resumable."""


class RolloutError(HfRlhfError):
    """An environment's `reset` failed or returned an unusable value."""


class JudgeError(HfRlhfError):
    """A judge cannot be used, or failed too often."""


class ModelError(HfRlhfError):
    """A model, adapter or tokenizer cannot be used."""


class RunFolderError(HfRlhfError):
    """An output folder is locked, read-only, or belongs to another run."""


class DiskError(RunFolderError):
    """A disk is full, over quota or read-only; the message states how and where to resume."""


class PublishError(HfRlhfError):
    """A push or pull failed; the message lists missing files and the command to finish."""


@contextmanager
def no_exit(*allowed: str) -> Iterator[None]:
    """Convert a `sys.exit()` in the block, even with status 0, to an error with its file and line.

    `allowed`: files that may exit, such as option parsers. Notes of the exception are preserved.
    """
    try:
        yield
    except SystemExit as error:
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        if frame.filename.replace("\\", "/").endswith(allowed):
            raise
        stopped = HfRlhfError(
            f"{frame.filename}:{frame.lineno} ended the process ({type(error).__name__} "
            f"{error.code!r}) before the work was done. Raise another exception there, or catch "
            "this one where that code is called."
        )
        for note in getattr(error, "__notes__", ()):
            stopped.add_note(note)
        raise stopped from error
