"""Update the record, `config.yaml` and the card of a run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from hf_rlhf.cards.folders import saved_weights, write_card
from hf_rlhf.cards.history import series
from hf_rlhf.cards.plots import reward_curve, training_curves
from hf_rlhf.cards.render import render_card
from hf_rlhf.config.yaml import dump_yaml
from hf_rlhf.evaluation.results import Measured
from hf_rlhf.models.contents import with_written
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.runs.preflight import advice
from hf_rlhf.runs.preflight_data import data_lines
from hf_rlhf.runs.reward_validation import hook
from hf_rlhf.runs.run import Run
from hf_rlhf.runs.sharded_memory import counted_peak
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord, load_record, now, write_record
from hf_rlhf.storage.record_schema import Author, Picture, TrainingSection
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.training.model_record import add_weights
from hf_rlhf.training.record_sections import (
    as_shell,
    distribution,
    evaluation_section,
    judges_section,
    opening,
    reproduction,
    samples_section,
    sessions,
    training_section,
    usage_elsewhere,
)
from hf_rlhf.training.run_folder import (
    changes,
    found_commits,
    found_contents,
    previous_record,
)

EndStatus = Literal["finished", "interrupted", "failed"]


class Recorder:
    """A run's record. Every process holds it; only the main process writes."""

    def __init__(self, run: Run, state: Any) -> None:
        self.run = run
        self.state = state
        self.record = RunRecord()
        self.earlier_usage: dict[str, dict[str, float]] = {}
        self._counted: dict[str, int | None] = {}

    def open(self, argv: Sequence[str]) -> None:
        """Start the record, or continue the folder's record; nothing is written yet.

        Raises RunFolderError when the folder holds another run.
        """
        previous = previous_record(self.run)
        # Every process must read it before the main process writes.
        self.state.wait_for_everyone()
        if previous is None:
            world = self.run.training.world_size
            command = reproduction(argv, world, distribution(self.run))
            self.record = opening(self.run, command)
            self.record.contents = found_contents(self.run)
            self.record.reward_validation = hook().section(self.run)
            # A card that cannot be rendered must fail now, not after training.
            render_card(self.record)
        else:
            self._continue(previous)
        if self.record.status != "finished":
            self.record.status, self.record.finished = "running", None
            self.record.sessions = sessions(self.record, self.run)
            self._counted = counted_peak(self.run)
            if previous is not None:
                self.record.sessions[-1].changed += changes(previous, self.run)

    def _continue(self, previous: RunRecord) -> None:
        """Continue a run's record with the current `card` and `publish` sections."""
        spec = self.run.spec
        self.record = previous
        self.earlier_usage = {
            judge["label"]: dict(judge.get("usage") or {}) for judge in previous.reward.judges
        }
        self.record.config = dict(spec.plain)
        self.record.author = Author(**as_json(spec.card))
        # Keep options of `hf-rlhf publish` that the run file does not set.
        self.record.publish = {**previous.published(), **(spec.plain.get("publish") or {})}

    def refresh(self) -> None:
        """Rewrite the record and the card of a finished run if they changed."""
        if redact_secrets(self.record.to_json()) != load_record(self.run.folder).to_json():
            self.write()
            write_card(self.record, self.run.folder)

    @property
    def command(self) -> str:
        """The command that repeats the run, in shell syntax."""
        return as_shell(self.record.command)

    def data_lines(self) -> Iterable[str]:
        """Return lines on the training data."""
        return data_lines(self.run)

    def advice(self) -> Sequence[str]:
        """Record and return warnings that do not stop the run."""
        self.record.advice = advice(self.run)
        return self.record.advice

    def loaded(self, trainer: Any) -> None:
        """Record facts known once the weights are loaded."""
        add_weights(self.record.model, trainer, self.run)

    def measured(self, before: Measured, after: Measured) -> None:
        """Record the held-out results."""
        self.record.evaluation = evaluation_section(self.run, before, after)

    def sampled(
        self, before: Measured, after: Measured, trained: Sequence[Mapping[str, Any]]
    ) -> None:
        """Record completions before, during and after training."""
        self.record.samples = samples_section(before, after, trained)

    def training(self, trainer: Any, seconds: float) -> TrainingSection:
        """Return how far training got, from the trainer's own state."""
        return training_section(self.run, trainer, seconds)

    def trained(self, training: TrainingSection, resumed_at: int) -> None:
        """Record the progress of training in the run and in this session."""
        before = self.record.training.monitor
        if resumed_at and training.monitor is None and before is not None:
            # The run file no longer has a monitor; the last results are still valid.
            training.monitor = before.model_copy(update={"stopped_at": None})
        training.peak_memory = {**(training.peak_memory or {}), **self._counted}
        self.record.training = training
        self.record.reward.judges = judges_section(self.run, self.earlier_usage)
        self.record.sessions[-1].from_step = resumed_at
        self.record.sessions[-1].to_step = training.steps

    def write(self) -> None:
        """Write the record, the resolved configuration and the reward reports."""
        if not self.state.is_main_process:
            return
        hook().copy_reports(self.run)
        # Files missing from the cache at the start have been loaded since.
        contents = with_written(self.record.contents, self.run.spec.plain)
        self.record.contents = found_commits(self.run) | contents
        write_record(self.record, self.run.folder)
        content = redact_secrets({**self.run.spec.plain, "plugin": self.run.spec.plugin})
        atomic_write_text(self.run.folder / "config.yaml", dump_yaml(content))

    def gather_usage(self) -> None:
        """Add the judges' usage on the other processes; all processes must call this."""
        self.earlier_usage = usage_elsewhere(self.run, self.earlier_usage)

    def close(self, status: EndStatus) -> None:
        """Write the record, the curves and the card of a run that ended with `status`."""
        self.record.status = status
        self.record.finished = now()
        self.record.sessions[-1].status = status
        self.record.sessions[-1].ended = self.record.finished
        self.record.reward.judges = judges_section(self.run, self.earlier_usage)
        logged = series(self.record.training.history, f"rewards/{TOTAL}/mean")
        reward = "Reward during training, and held-out reward" if logged else "Held-out reward"
        pictures = (
            ("reward_curve.png", reward_curve, reward),
            ("training_curves.png", training_curves, "Metrics that the trainer logged"),
        )
        self.record.pictures = [
            Picture(file=name, alt=alt)
            for name, draw, alt in pictures
            if draw(self.record, self.run.folder / name)
        ]
        self.record.model.saved = saved_weights(self.run.folder)
        self.write()
        write_card(self.record, self.run.folder)
