"""What is to be done of a list of steps, and doing it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hf_rlhf.errors import HfRlhfError
from hf_rlhf.steps.ledger import Ledger, Recording

State = Literal["done", "to do", "stale", "waiting"]


@dataclass(frozen=True)
class Step:
    """One step: its name, what it reads, and what does it."""

    name: str
    inputs: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    """What decides its result: settings, and digests of files. A function is called only when the
    steps of `after` are done, so it may read what they wrote."""
    action: Callable[[Recording], None]
    after: Sequence[str] = ()
    """Steps whose results it reads."""
    replaces: bool = False
    """Whether it overwrites its own earlier output in place (see `Ledger.recording`)."""

    def current_inputs(self) -> Mapping[str, Any]:
        """Return what it reads now."""
        return self.inputs() if callable(self.inputs) else self.inputs


@dataclass(frozen=True)
class StepStatus:
    """How a step stands, and why."""

    step: Step
    state: State
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.step.name}: {self.state}{why}"


def plan_steps(ledger: Ledger, steps: Sequence[Step]) -> list[StepStatus]:
    """Return how each step stands; `waiting` is one that reads what an earlier one will change."""
    statuses: dict[str, StepStatus] = {}
    for step in steps:
        due = [name for name in step.after if name in statuses and statuses[name].state != "done"]
        if due:
            statuses[step.name] = StepStatus(step, "waiting", (f"for {', '.join(due)}",))
        else:
            statuses[step.name] = _status(ledger, step, step.current_inputs())
    return list(statuses.values())


def run_steps(
    ledger: Ledger, steps: Sequence[Step], report: Callable[[str], None] = print
) -> list[str]:
    """Do the steps that are not done, in order, and return their names.

    Each is recorded as it ends, so the same call after an error or a kill continues with the first
    that is not done. `report` gets a line for each step. Raises what a step raises, after a line
    that names it, and RunFolderError when another process works in the folder.
    """
    performed = []
    with ledger.locked():
        for number, step in enumerate(steps, start=1):
            inputs = step.current_inputs()
            status = _status(ledger, step, inputs)
            report(f"[{number}/{len(steps)}] {status}")
            if status.state == "done":
                continue
            try:
                with ledger.recording(
                    step.name, inputs, after=step.after, replaces=step.replaces
                ) as recording:
                    step.action(recording)
            except HfRlhfError:
                report(
                    f"stopped in step {step.name}. Finished steps are kept: after the problem "
                    "below is solved, the same command continues with this one."
                )
                raise
            performed.append(step.name)
    return performed


def _status(ledger: Ledger, step: Step, inputs: Mapping[str, Any]) -> StepStatus:
    reasons = ledger.reasons(step.name, inputs, step.after)
    if reasons is None:
        return StepStatus(step, "to do")
    return StepStatus(step, "stale" if reasons else "done", tuple(reasons))
