"""Checks of the monitor's settings, before weights load."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hf_rlhf.errors import Problem
from hf_rlhf.formatting import counted
from hf_rlhf.runs.estimate import cycle_in_steps, planned_steps
from hf_rlhf.runs.run import trains_by_rewards
from hf_rlhf.storage.record import RECORD_NAME, load_record

if TYPE_CHECKING:
    from hf_rlhf.runs.run import Run


def monitor_problems(run: "Run") -> Iterator[Problem]:
    """Yield why the monitor could not measure, or would stop the run at once."""
    spec = run.spec.monitor
    if spec is None:
        return
    if trains_by_rewards(run.trainer_class, run.training) is False:
        what = f"has no effect: trainer {run.spec.plugin!r} does not train by rewards."
        yield Problem("monitor", what, "Leave it out.")
        return
    if spec.gold is not None and spec.gold not in _monitors(run):
        yield Problem(
            "monitor",
            f"`gold` is {spec.gold!r}, which is not a reward of weight 0.",
            f"Rewards of weight 0: {', '.join(_monitors(run)) or 'none'}. Name or add one.",
        )
    cycle = cycle_in_steps(run.training)
    if spec.every % cycle:
        what = f"`every` is {spec.every}, but a generation cycle takes {cycle} optimizer steps."
        yield Problem("monitor", what, f"Use a multiple of {cycle}.")
    if planned_steps(run) // spec.every <= spec.warmup:
        yield Problem("monitor", f"is idle: {monitor_line(run)}.", "Lower `every` or `warmup`.")
    yield from _stopped(run)


def monitor_line(run: "Run") -> str:
    """Return a line with the monitor's schedule and stop condition."""
    spec: Any = run.spec.monitor
    looks = counted(planned_steps(run) // spec.every, "measurement")
    gold = f"gold reward {spec.gold}" if spec.gold is not None else "no gold reward"
    return f"{looks}, one every {spec.every} steps, {spec.warmup} to warm up; {gold}"


def _monitors(run: "Run") -> list[str]:
    parts = run.reward.rewards if run.reward is not None else ()
    return [part.label for part in parts if part.weight == 0]


def _stopped(run: "Run") -> Iterator[Problem]:
    """Refuse to resume a run that the monitor stopped, unless its settings changed."""
    if not (run.folder / RECORD_NAME).is_file():
        return
    record = load_record(run.folder)
    before = record.training.monitor
    if before is None or not before.stopped_at or record.status == "finished":
        return
    if before.settings == asdict(run.spec.monitor):  # type: ignore[arg-type]
        text = before.warnings[-1].get("text") if before.warnings else "its signals are on"
        yield Problem(
            "monitor",
            f"stopped this run at step {before.stopped_at}: {text}.",
            "Correct the reward, in another `output_dir`. To go on: `--monitor.stop_on never`.",
        )
