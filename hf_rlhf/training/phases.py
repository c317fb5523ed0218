"""One process's way through a chain: each phase a run of its own, the end that of the last.

The chain's folder is a run folder like any other, with one record, one card and the weights that
the last phase made; `phases/1-NAME` and so on are the run folders of the phases.
"""

import os
import shutil
from collections.abc import Sequence
from functools import partial

from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import DiskError
from hf_rlhf.evaluation.held_out import measure, measure_before, without_revision
from hf_rlhf.evaluation.results import Evaluation, Measured
from hf_rlhf.runs.phases import Chain, Phase
from hf_rlhf.runs.resolve import with_initial_weights
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.files import atomic_dir, atomic_write_bytes
from hf_rlhf.storage.record import RECORD_NAME, RunRecord, load_record
from hf_rlhf.training.chain_record import composed
from hf_rlhf.training.phase_start import is_finished, note_saved, phase_start, starting_from
from hf_rlhf.training.progress import SAMPLES_NAME, evenly, read_samples
from hf_rlhf.training.record_sections import evaluation_section, samples_section
from hf_rlhf.training.session import Session
from hf_rlhf.training.trackers import end_runs

_OF_WEIGHTS = ("num_labels", "parameters", "trainable_parameters", "dtype", "adapter")
_MEASURED_AFTER = {"text": "after.json", "own": "after_held_out.json"}


class ChainSession(Session):
    """Does the phases that are not done, then what a session does with what they have made."""

    def __init__(self, chain: Chain, face: Run, runs: Sequence[Run]) -> None:
        super().__init__(face)
        self.chain = chain
        self.runs = runs
        self._argv: Sequence[str] = ()
        self._current: Phase | None = None

    def go(self, argv: Sequence[str]) -> RunRecord:
        """Do what is left to do of the chain, and return its record. `argv` repeats it."""
        self._argv = argv
        return super().go(argv)

    def _train_and_measure(self) -> None:
        face = self.run
        kwargs = without_revision(face.model_kwargs())
        names = " -> ".join(link.name for link in self.chain.links)
        self._say(f"training {self.chain.plugin} in {face.folder}: {names}")
        before = measure_before(face, self._say)
        self.record.evaluation = evaluation_section(face, before, Measured())
        try:
            for index in range(len(self.chain.links)):
                self._phase(index)
        finally:
            if self.main:
                self._compose()
            trained = evenly(read_samples(self.chain.links[-1].folder / SAMPLES_NAME), 6)
            self.record.samples = samples_section(before, Measured(), trained)
        run_on_main_process(self._take_over)
        after = measure(
            face, "after", face.folder / "merged", kwargs, self._say, self._measured_after()
        )
        self.record.evaluation = evaluation_section(face, before, after)
        self.record.samples = samples_section(before, after, trained)
        self.recorder.gather_usage()
        run_on_main_process(lambda: self.recorder.close("finished"))

    def _phase(self, position: int) -> None:
        """Run one phase, or see that it is done."""
        link = self._current = self.chain.links[position]
        title = f"phase {link.number} of {len(self.chain.links)}, {link.name}"
        if is_finished(link, self.runs[position]):
            self._say(f"{title}: done already")
        else:
            self._train(position, title)
        run_on_main_process(partial(note_saved, link.folder, self.runs[position].model.use_peft))
        self._current = None
        run_on_main_process(self._compose)
        self.recorder.write()

    def _train(self, position: int, title: str) -> None:
        link, run = self.chain.links[position], self.runs[position]
        before = self.chain.links[position - 1] if position else None
        start = phase_start(link, before, run.model.use_peft, self._say)
        if start is not None:
            run = with_initial_weights(run, starting_from(link.file, start, run.model.use_peft))
        self._say(f"{title}: from {start or run.model.model_name_or_path}")
        session = _PhaseSession(run, self.stopping)
        try:
            session.go(self._argv)
        except BaseException:
            self.agreed = session.agreed
            raise
        finally:
            end_runs()

    def _compose(self) -> None:
        """Make the record of the phases' records."""
        records = [
            load_record(link.folder) if (link.folder / RECORD_NAME).exists() else None
            for link in self.chain.links
        ]
        # Before the first step there is nothing to compose, and the record has its empty section.
        if (training := composed(self.chain, self.runs, records)) is not None:
            self.record.training = training
        known = [record.model for record in records if record is not None]
        if known:
            for name in _OF_WEIGHTS:
                setattr(self.record.model, name, getattr(known[-1], name))
            self.record.model.identity = known[0].identity

    def _take_over(self) -> None:
        """Put what the last phase made into the chain's own folder, without a second copy."""
        created, folder = self.chain.links[-1].folder, self.run.folder
        for name in ("adapter", "merged"):
            if not (created / name).is_dir():
                continue
            with atomic_dir(folder / name, overwrite=True) as new:
                shutil.copytree(created / name, new, copy_function=_linked, dirs_exist_ok=True)
        for name in (SAMPLES_NAME, *(f"evaluation/{value}" for value in _MEASURED_AFTER.values())):
            if (created / name).exists():
                atomic_write_bytes(folder / name, (created / name).read_bytes())

    def _measured_after(self) -> dict[str, Evaluation]:
        folder = self.run.folder / "evaluation"
        return {
            part: Evaluation.load(folder / name)
            for part, name in _MEASURED_AFTER.items()
            if (folder / name).exists()
        }

    def _how_to_go_on(self) -> str:
        if self._current is None:
            return super()._how_to_go_on()
        return f"It was in phase {self._current.name}, {self._current.number} of {len(self.runs)}."

    def _disk_error(self, error: BaseException) -> DiskError | None:
        # The phase has said what is safe.
        return None if isinstance(error, DiskError) else super()._disk_error(error)


class _PhaseSession(Session):
    """The session of a phase: only its end is published, and a phase only if it asks for it."""

    def _publish(self) -> None:
        if self.run.spec.publish.repo_id is not None:
            super()._publish()


def _linked(source: str, target: str) -> None:
    """Give a file a second name, or copy it where the disk has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
