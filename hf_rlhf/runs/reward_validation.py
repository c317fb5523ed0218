"""The section `reward_validation`, checked by a package's hook (the lab's)."""

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, cast

from hf_rlhf.config import registry
from hf_rlhf.errors import Problem
from hf_rlhf.storage.reward_validation import RewardValidation

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run

KEY = "reward_validation"


class RewardValidationHook:
    """The interface of the entry point `reward_validation` of the group `hf_rlhf.hooks`; a no-op.

    A module with these functions also works.
    """

    def __init__(self, cause: str = "") -> None:
        self.cause = cause

    def problems(self, run: "Run") -> Iterator[Problem]:
        """Yield why the run's rewards do not meet the file's requirements."""
        if run.spec.reward_validation is not None:
            what = f"needs the package hf-rlhf-lab{self.cause}."
            yield Problem(KEY, what, "Install it, or remove this.")

    def advice(self, run: "Run") -> Iterator[str]:
        """Yield notes on rewards that were not validated, or miss a requirement."""
        yield from ()

    def section(self, run: "Run") -> RewardValidation | None:
        """Return the reports' results for the record, and whether they meet the requirements."""

    def copy_reports(self, run: "Run") -> None:
        """Copy the reports into the run folder, from which they are published; once."""


@cache
def hook() -> RewardValidationHook:
    """Return the installed package's hook, or the no-op."""
    points = [each for each in registry.entry_points(group="hf_rlhf.hooks") if each.name == KEY]
    try:
        return cast(RewardValidationHook, points[0].load()) if points else RewardValidationHook()
    except Exception as error:  # noqa: BLE001 - it may raise anything, and most runs do not need it
        return RewardValidationHook(f", which does not load ({type(error).__name__}: {error})")
