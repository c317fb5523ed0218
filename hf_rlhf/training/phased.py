"""A session of a run with phases, each trained in its own session."""

from functools import partial
from pathlib import Path
from typing import Any

from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import DiskError
from hf_rlhf.evaluation.results import Evaluation
from hf_rlhf.runs.run import Phase
from hf_rlhf.training.phases import (
    compose_record,
    is_finished,
    measured_after,
    note_saved,
    take_over,
    with_weights_of,
)
from hf_rlhf.training.session import Session
from hf_rlhf.training.trackers import end_runs


class PhasedSession(Session):
    """Trains the phases in order, and takes over the files of the last phase."""

    def __init__(self, *args: Any, open_session: Any, **kwargs: Any) -> None:
        """Prepare a session; `open_session` opens a phase's session, which shares `stopping`."""
        super().__init__(*args, **kwargs)
        self._open_session = open_session
        self._current: Phase | None = None

    def _how_to_resume(self) -> str:
        if (phase := self._current) is None:
            return super()._how_to_resume()
        return f"It was in phase {phase.name}, {phase.number} of {len(self.run.phases)}."

    def _disk_error(self, error: BaseException) -> DiskError | None:
        if self._current is not None and isinstance(error, DiskError):
            return None  # created by the phase's session
        return super()._disk_error(error)

    def _announce(self) -> None:
        names = " -> ".join(phase.name for phase in self.run.phases)
        self._say(f"training {self.run.spec.plugin} in {self.run.folder}: {names}")

    def _known_results(self) -> dict[str, Evaluation]:
        run_on_main_process(partial(take_over, self.run))
        return measured_after(self.run)

    def _train(self) -> None:
        try:
            for index in range(len(self.run.phases)):
                self._train_phase(index)
        finally:
            if self.main:
                compose_record(self.record, self.run)

    def _train_phase(self, index: int) -> None:
        """Train a phase unless it is done."""
        phases = self.run.phases
        phase = phases[index]
        self._current, run = phase, phase.run
        title = f"phase {phase.number} of {len(phases)}, {phase.name}"
        if is_finished(run):
            self._say(f"{title}: already done")
        else:
            start: str | Path = run.model.model_name_or_path
            if index:
                run, start = with_weights_of(run, phases[index - 1])
            self._say(f"{title}: from {start}")
            try:
                self._open_session(run, self.stopping).go(self._argv)
            finally:
                end_runs()
        run_on_main_process(partial(note_saved, phase))
        self._current = None
        run_on_main_process(partial(compose_record, self.record, self.run))
        self.recorder.write()
