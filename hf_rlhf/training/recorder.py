"""Keeps the record, `config.yaml` and the card of a run true while it goes, and when it ends."""

from collections.abc import Sequence
from typing import Any, Literal

from hf_rlhf.cards.facts import series
from hf_rlhf.cards.folder_card import weights_in, write_card
from hf_rlhf.cards.plots import reward_curve, training_curves
from hf_rlhf.cards.render import render_card
from hf_rlhf.config import yaml as plain_yaml
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.files import atomic_write_text
from hf_rlhf.storage.pure_json import as_json
from hf_rlhf.storage.record import RunRecord, load_record, now, write_record
from hf_rlhf.storage.record_schema import Author, Picture, TrainingSection
from hf_rlhf.storage.secrets import redact_secrets
from hf_rlhf.training.record_sections import (
    distribution,
    judges_section,
    method_section,
    opening,
    reproduction,
    sessions,
    usage_elsewhere,
    usage_of,
)
from hf_rlhf.training.run_folder import previous_record

EndStatus = Literal["finished", "interrupted", "failed"]


class Recorder:
    """One run's record. Every process holds it; only the main one writes."""

    def __init__(self, run: Run, state: Any) -> None:
        self.run = run
        self.state = state
        self.record = RunRecord()
        self.earlier_usage: dict[str, dict[str, float]] = {}

    def open(self, argv: Sequence[str]) -> None:
        """Begin the record, or take up the one that the folder holds; nothing is written yet.

        Raises RunFolderError when the folder holds another run.
        """
        previous = previous_record(self.run)
        # Every process must have looked before the main one writes.
        self.state.wait_for_everyone()
        if previous is None:
            world = self.run.training.world_size
            command = reproduction(argv, world, distribution(self.run))
            self.record = opening(self.run, command)
            # A card that cannot be rendered is found out now, not after the training.
            render_card(self.record)
        else:
            self._take_up(previous)
            if not self.record.data.digests and self.state.is_main_process:
                print(
                    f"note: {self.run.folder} was started by an older hf-rlhf, without a digest of "
                    "its rows: only a change in the number of rows can be detected.",
                    flush=True,
                )
        if self.record.status != "finished":
            self.record.status, self.record.finished = "running", None
            self.record.sessions = sessions(self.record, self.run)

    def _take_up(self, previous: RunRecord) -> None:
        """Go on with a run's record; what the run file says of card and publishing may be new."""
        spec = self.run.spec
        self.earlier_usage = usage_of(previous.reward.judges)
        # Where `hf-rlhf publish` was told more than the run file says, that stands.
        publish = {**previous.published(), **(spec.plain.get("publish") or {})}
        author = Author(**as_json(spec.card)[0])
        self.record = previous
        self.record.config, self.record.author = dict(spec.plain), author
        self.record.publish = publish
        if self.record.method.name is None:  # of a version that did not record it
            self.record.method = method_section(self.run)

    def refresh(self) -> None:
        """Write the record and the card of a finished run anew, if they now say something else."""
        if redact_secrets(self.record.to_json()) != load_record(self.run.folder).to_json():
            self.write()
            self._render()

    def trained(self, training: TrainingSection, resumed_at: int) -> None:
        """Note how far training got, in the run and in this session."""
        self.record.training = training
        self.record.reward.judges = judges_section(self.run, self.earlier_usage)
        self.record.sessions[-1].from_step = resumed_at
        self.record.sessions[-1].to_step = training.steps

    def write(self) -> None:
        """Write the record and the resolved configuration."""
        if not self.state.is_main_process:
            return
        write_record(self.record, self.run.folder)
        content = redact_secrets({**self.run.spec.plain, "plugin": self.run.spec.plugin})
        atomic_write_text(self.run.folder / "config.yaml", plain_yaml.dump(content))

    def gather_usage(self) -> None:
        """Count the judges' usage on the other processes too; all of them must call this."""
        self.earlier_usage = usage_elsewhere(self.run, self.earlier_usage)

    def close(self, status: EndStatus) -> None:
        """Write the record, the curves and the card of a run that ended as `status`."""
        self.record.status = status
        self.record.finished = now()
        self.record.sessions[-1].status = status
        self.record.sessions[-1].ended = self.record.finished
        self.record.reward.judges = judges_section(self.run, self.earlier_usage)
        logged = series(self.record.training.history, f"rewards/{TOTAL}/mean")
        displayed = "Reward during training, and held-out reward" if logged else "Held-out reward"
        pictures = (
            ("reward_curve.png", reward_curve, displayed),
            ("training_curves.png", training_curves, "What the trainer logged of itself"),
        )
        self.record.pictures = [
            Picture(file=name, alt=alt)
            for name, draw, alt in pictures
            if draw(self.record, self.run.folder / name)
        ]
        self.record.model.saved = weights_in(self.run.folder)
        self.write()
        self._render()

    def _render(self) -> None:
        write_card(self.record, self.run.folder)
