"""The callback that measures training completions, warns and stops."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from hf_rlhf.config.schema import MonitorSpec
from hf_rlhf.errors import DriftError, RewardError
from hf_rlhf.monitoring.signals import Assessment, Mean, Measurement, Signal, assess
from hf_rlhf.rewards.composed import TOTAL, ComposedReward
from hf_rlhf.rewards.gathered import ScoredRow
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.checkpoints import step_of, valid_checkpoints
from hf_rlhf.storage.monitor_schema import MonitorSection

CONSTANT = {
    "length": "in the warm-up every measurement had completions of the same mean length",
    "gold": "a measurement has one prompt, or gold abstained, so there is no interval",
}
"""Reasons why a signal cannot fire."""
FIXED_SETTINGS = ("gold", "every", "warmup")
"""A change of these settings makes earlier measurements incomparable."""
Row = tuple[int, int, float | None, float | None]
"""Checksum of the prompt, length, trained reward and gold reward of a completion."""


class RewardCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that uses the training's reward."""

    def follow(self, reward: ComposedReward) -> None:
        """Use `reward`, with which a trainer replaced the run's reward."""


class Monitor(RewardCallback, ExportableState):  # type: ignore[misc]
    """Measures every few steps, warns when a signal fires, and stops if the run file says so.

    All processes have the rows of all, so their measurements agree. Each checkpoint contains the
    measurements so far. This callback must precede callbacks that save and stop at a step's end.

    Args:
        spec: the run file's section.
        name: the run's name for messages.
        stop: ends training at the next boundary with an error; called on every process.
        say: prints a line on the main process.
    """

    def __init__(
        self,
        spec: MonitorSpec,
        name: str,
        stop: Callable[[DriftError], None],
        say: Callable[[str], None],
    ) -> None:
        self.spec, self.name, self._stop, self._say = spec, name, stop, say
        self.measurements: list[Measurement] = []
        self.warnings: list[dict[str, Any]] = []
        self.stopped_at: int | None = None
        self._assessment = Assessment()
        self._rows: list[Row] = []
        self._finished = 0
        """How many of the rows belong to steps that are done; others may be of an evaluation."""
        self._unlogged: dict[str, float] = {}

    @classmethod
    def of(
        cls, run: Run, stop: Callable[[DriftError], None], say: Callable[[str], None]
    ) -> "Monitor | None":
        """Return the monitor of a run; None without a `monitor:` section."""
        if run.spec.monitor is None:
            return None
        monitor = cls(run.spec.monitor, run.folder.name, stop, say)
        if run.reward is not None:
            monitor.follow(run.reward)
        return monitor

    def follow(self, reward: ComposedReward) -> None:
        """Watch the rows that `reward` scores."""
        reward.observer = self.observe

    def observe(self, rows: Sequence[ScoredRow]) -> None:
        """Record the rows of all processes from a reward call."""
        gold = self.spec.gold
        for row in rows:
            score = row.scores[gold] if gold else None
            self._rows.append((row.prompt, row.length, row.scores[TOTAL], score))

    @property
    def clean_step(self) -> int | None:
        """The last step before the drift, if any; None before the first measurement."""
        return self._assessment.clean

    # Events of a training.

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue the checkpoint's measurements, unless their settings changed."""
        # transformers saves into this entry, which is missing in runs without a monitor.
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        if not state.global_step:
            return
        values = saved["attributes"]
        self.warnings = values["warnings"]
        settings = asdict(self.spec)
        before = {**settings, **values.get("settings", {})}
        if changed := [key for key in FIXED_SETTINGS if before[key] != settings[key]]:
            names = ", ".join(f"`{key}`" for key in changed)
            self._say(f"note: monitor: a new warm-up begins, because of another {names}")
            return
        self.measurements = [Measurement.from_json(each) for each in values["measurements"]]
        self._rows = [tuple(row) for row in values["rows"]]
        self._finished = len(self._rows)
        self._assessment = assess(self.measurements, self.spec)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Drop rows that an evaluation scored between two steps."""
        del self._rows[self._finished :]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure if it is time, and act on the result."""
        self._finished = len(self._rows)
        if state.global_step % self.spec.every:
            return
        if not self._rows and not self.measurements:
            raise RewardError(
                f"monitor: no completion was scored in the first {state.global_step} steps, so "
                "there is nothing to watch. This trainer scores none within its steps: remove "
                "`monitor`."
            )
        earlier = self._assessment.names
        self._add_measurement(state.global_step)
        self._assessment = assess(self.measurements, self.spec)
        self._unlogged = self._metrics()
        if len(self.measurements) == self.spec.warmup:
            for name in self.not_measured():
                self._say(f"note: monitor: the signal {name} cannot come on: {CONSTANT[name]}")
        new = [signal for signal in self._assessment.signals if signal.name not in earlier]
        self._act(new, state, Path(args.output_dir))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        """Add the last measurement to the trackers' log, once."""
        if "loss" in logs:
            logs.update(self._unlogged)
            self._unlogged = {}

    def state(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {
            "args": {},
            "attributes": {
                "settings": asdict(self.spec),
                "measurements": [asdict(each) for each in self.measurements],
                "rows": self._rows[: self._finished],
                "warnings": self.warnings,
            },
        }

    # Measurements and their consequences.

    def _add_measurement(self, step: int) -> None:
        rows, self._rows, self._finished = self._rows, [], 0
        length, trained, gold = (Mean.of((row[0], row[part]) for row in rows) for part in (1, 2, 3))
        self.measurements.append(Measurement(step, len(rows), length, trained, gold))

    def _act(self, new: Sequence[Signal], state: Any, folder: Path) -> None:
        step = state.global_step
        is_on = "gold" in self._assessment.names
        stops = self.stopped_at is None and is_on and self.spec.stop_on == "gold"
        if not new and not stops:
            return
        for signal in new:
            warning = {"step": step, "signal": signal.name, "since": signal.since}
            self.warnings.append({**warning, "text": signal.text, "stopped": stops})
            self._say(f"warning: monitor, step {step}: {signal.text}")
        before = self._checkpoint_before(folder)
        if len(self._assessment.signals) > 1:
            self._say(f"warning: monitor: {len(self._assessment.signals)} signals are on. {before}")
        if stops:
            self.stopped_at = step
            cause = next(s.text for s in self._assessment.signals if s.name == "gold")
            self._stop(DriftError(_stopped_message(step, cause, before)))

    def _checkpoint_before(self, folder: Path) -> str:
        clean = self.clean_step or 0
        earlier = [path for path in valid_checkpoints(folder) if step_of(path) <= clean]
        if earlier:
            return f"The last checkpoint before the drift, {earlier[-1]}, is kept."
        return f"There is no checkpoint from before the drift, which began after step {clean}."

    def _metrics(self) -> dict[str, float]:
        each, now = self.measurements[-1], self._assessment
        means = {"length": each.length, "trained": each.trained, "gold": each.gold}
        values = {name: mean.mean for name, mean in means.items() if mean is not None}
        changes = {"trained_change": now.trained, "gold_change": now.gold}
        values |= {name: change.value for name, change in changes.items() if change is not None}
        values |= {} if now.length_z is None else {"length_z": now.length_z}
        values["signals"] = float(len(now.signals))
        return {f"monitor/{name}": value for name, value in values.items()}

    # For the record.

    def not_measured(self) -> list[str]:
        """Return the signals that cannot fire, once the warm-up is over."""
        start = self.measurements[: self.spec.warmup]
        if len(start) < self.spec.warmup:
            return []
        lengths = {each.length.mean for each in start if each.length is not None}
        golden = [each.gold for each in self.measurements if each.gold is not None]
        missing = {
            "length": len(lengths) < 2,
            "gold": self.spec.gold is not None and not any(mean.error for mean in golden),
        }
        return [name for name, is_missing in missing.items() if is_missing]

    def section(self) -> MonitorSection:
        """Return the measurements and their consequences for the record."""
        measurements = []
        for number, each in enumerate(self.measurements, start=1):
            then = assess(self.measurements[:number], self.spec)
            signals = sorted(then.names)
            measurements.append({**asdict(each), "length_z": then.length_z, "signals": signals})
        return MonitorSection(
            settings=asdict(self.spec),
            measurements=measurements,
            warnings=self.warnings,
            not_measured=[f"{name}: {CONSTANT[name]}" for name in self.not_measured()],
            clean_step=self.clean_step,
            stopped_at=self.stopped_at,
        )


def _stopped_message(step: int, text: str, before: str) -> str:
    return (
        f"The monitor stopped training at step {step}, which is saved: {text}.\n"
        f"{before} samples.jsonl shows what the reward pays for. Correct the reward, or hold the "
        "policy closer to the reference, and train again from the base or from such a checkpoint. "
        "To continue all the same, add `--monitor.stop_on never` to the command below."
    )
