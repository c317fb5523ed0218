"""The work of a process in a run: evaluate, train, save, merge, evaluate again, publish."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accelerate import PartialState

from hf_rlhf.distributed import run_on_main_process
from hf_rlhf.errors import DiskError, DriftError, HfRlhfError, JudgeError, RewardError
from hf_rlhf.evaluation.example import greedy_example
from hf_rlhf.evaluation.held_out import measure, measure_before, without_revision
from hf_rlhf.evaluation.results import Evaluation, Measured
from hf_rlhf.models.lengths import has_new_head
from hf_rlhf.models.loading import check_continued
from hf_rlhf.monitoring.monitor import Monitor
from hf_rlhf.rewards.abstentions import check_learned
from hf_rlhf.rewards.composed import TOTAL
from hf_rlhf.runs.run import Run
from hf_rlhf.storage.checkpoints import discard_unsealed, step_of, valid_checkpoints
from hf_rlhf.storage.disk import disk_error
from hf_rlhf.storage.lock import locked_folder
from hf_rlhf.storage.record import RunRecord, load_record
from hf_rlhf.training.checkpoints import (
    AlreadyTrained,
    CheckpointManifestCallback,
    StopIfTrained,
    newest_valid,
)
from hf_rlhf.training.exactness import check_exactness
from hf_rlhf.training.generation_cycle import Cycle
from hf_rlhf.training.library_warnings import head_is_new
from hf_rlhf.training.progress import (
    SAMPLES_NAME,
    AfterSave,
    ShowProgress,
    disable_progress_bars,
    evenly,
    print_results,
    read_samples,
    remove_printers,
    say,
)
from hf_rlhf.training.saving import save_boundary, save_weights
from hf_rlhf.training.signals import Stopping, Terminated
from hf_rlhf.training.trackers import continued_tracker_run
from hf_rlhf.training.validation import Validation

if TYPE_CHECKING:
    from hf_rlhf.training.publication import Publication
    from hf_rlhf.training.recorder import Recorder


class Session:
    """Runs a process of a run. All processes make the same collective calls."""

    def __init__(
        self,
        run: Run,
        recorder: "Recorder",
        publication: "Publication",
        stopping: Stopping | None = None,
    ) -> None:
        """Prepare a session; a phase's session shares `stopping` with its run."""
        if not sys.stderr.isatty():
            disable_progress_bars()
        self.run = run
        self.state = PartialState()
        self.recorder = recorder
        self.publication = publication
        self.stopping = stopping or Stopping(run.spec.limits.stop_grace)
        self._is_phase = stopping is not None
        self._argv: Sequence[str] = ()

    @property
    def record(self) -> RunRecord:
        """The run's record so far."""
        return self.recorder.record

    @property
    def main(self) -> bool:
        """Whether this process writes, prints and publishes."""
        return bool(self.state.is_main_process)

    def go(self, argv: Sequence[str]) -> RunRecord:
        """Complete the run and return its record. `argv` repeats it.

        Raises Terminated if the process must end.
        """
        self._argv = argv
        with ExitStack() as stack:
            if not self._is_phase:
                stack.enter_context(self.stopping)
            run_on_main_process(lambda: stack.enter_context(locked_folder(self.run.folder)))
            self.recorder.open(argv)
            finished = self.record.status == "finished"
            run_on_main_process(self.recorder.refresh if finished else self.recorder.write)
            if self.main:
                self.publication.open()
            if finished:
                self._say(f"the run in {self.run.folder} is finished: nothing is left to train")
            else:
                for text in self.record.sessions[-1].changed:
                    self._say(f"note: since the run began: {text}")
                self._train_and_record()
            # Other processes do not wait for the upload, which may outlast the process group's
            # timeout.
            if self.main:
                print_results(self.record)
                self._say(f"card: {self.run.folder / 'README.md'}")
                if not self._is_phase or self.run.spec.publish.repo_id is not None:
                    self.publication.publish()  # only the last phase is published
            return load_record(self.run.folder)

    def _train_and_record(self) -> None:
        """Train and measure, and leave a correct record and card at any end."""
        try:
            self._train_and_measure()
        except BaseException as error:
            disk_error = self._disk_error(error)
            if disk_error is None:
                error.add_note(self._how_to_resume())
            status: Literal["interrupted", "failed"] = "failed"
            if isinstance(error, KeyboardInterrupt | DriftError):
                status = "interrupted"
            raised = disk_error or error

            def close() -> None:
                self.recorder.close(status)
                for note in self.publication.drain(interrupted=True):
                    raised.add_note(note)
                self.recorder.write()

            try:
                if self.stopping.agreed:
                    # When a process ends, the launcher ends the others.
                    run_on_main_process(close)
                elif self.main:
                    close()
            except HfRlhfError as second:
                # The first error matters more; a full disk, for example, may have caused both.
                print(f"the record could not be closed: {second}", file=sys.stderr)
            if disk_error is not None:
                raise disk_error from error
            raise

    def _how_to_resume(self) -> str:
        checkpoints = valid_checkpoints(Path(self.run.training.output_dir))
        where = f"from {checkpoints[-1]}" if checkpoints else "from the start of training"
        return f"The same command resumes {where}:\n  {self.recorder.command}"

    def _disk_error(self, error: BaseException) -> DiskError | None:
        """Return the error to raise if a disk stopped the run; delete partial checkpoints."""
        checkpoints = Path(self.run.training.output_dir)
        newest = valid_checkpoints(checkpoints)
        last = newest[-1] if newest else None
        message = disk_error(error, self.run.folder, last, self.recorder.command)
        if message is not None and self.main:
            discard_unsealed(checkpoints)
        return message

    def _train_and_measure(self) -> None:
        run = self.run
        # A trainer may change the settings behind `model_kwargs`.
        kwargs = without_revision(run.model_kwargs())
        self._announce()
        with head_is_new(has_new_head(run)):
            before = measure_before(run, self._say)
        self.recorder.measured(before, Measured())
        trained: Sequence[Mapping[str, Any]] = ()
        try:
            self._train()
        finally:
            trained = evenly(read_samples(run.phases[-1].run.folder / SAMPLES_NAME), 6)
            self.recorder.sampled(before, Measured(), trained)
        known = self._known_results()
        after = measure(run, "after", run.folder / "merged", kwargs, self._say, known)
        self.recorder.measured(before, after)
        self.recorder.sampled(before, after, trained)
        if not self._is_phase:
            run_on_main_process(self._record_generation)
        self.recorder.gather_usage()
        run_on_main_process(lambda: self.recorder.close("finished"))

    def _announce(self) -> None:
        """Print the training data."""
        for line in self.recorder.data_lines():
            self._say(f"data: {line}")

    def _known_results(self) -> dict[str, Evaluation]:
        """Return results after training that are already known."""
        return {}

    def _record_generation(self) -> None:
        self.record.generation = greedy_example(self.run, self.run.folder / "merged")

    def _train(self) -> None:
        """Train and save the model."""
        run = self.run
        for text in self.recorder.advice():
            self._say(f"note: {text}")
        self._say(f"training {run.spec.plugin} in {run.folder}")
        with continued_tracker_run(run.training, str(self.record.run_id), run.folder):
            trainer = self._fit(has_new_head(run))
        masks = bool(getattr(run.training, "mask_truncated_completions", False))
        check_learned(trainer.state.log_history, TOTAL, masks)
        save_weights(run, trainer, self.record.model.identity, self._say)
        # Evaluation needs the optimizer's memory.
        trainer.accelerator.free_memory()

    def _fit(self, new_head: bool) -> Any:
        """Train from the newest valid checkpoint; record the progress at any end."""
        after_save: list[Callable[[], object]] = []
        validation = Validation(self.run)
        cycle, run = self._with_callbacks(after_save, validation)
        trainer = validation.trainer = self._load(run, new_head)
        newest = self._resume_from()
        resumed_at = step_of(newest) if newest else 0
        earlier = self.record.training.seconds or 0.0
        started = time.monotonic()

        def note() -> None:
            # Before the checkpoint is loaded, the trainer's state lacks its steps.
            if trainer.state.global_step >= resumed_at:
                seconds = earlier + time.monotonic() - started
                section = self.recorder.training(trainer, seconds)
                section.validation = validation.section(trainer.state)
                section.monitor = self.monitor.section() if self.monitor else None
                self.recorder.trained(section, resumed_at)

        def push() -> None:
            self.publication.push_checkpoint(trainer.state.global_step)

        after_save += [note, push, self.recorder.write]
        try:
            trainer.train(resume_from_checkpoint=str(newest) if newest else None)
        except AlreadyTrained:
            self._say("every step is done")
        except (KeyboardInterrupt, RewardError, JudgeError) as error:
            save_boundary(run, trainer, cycle, error, self._say)
            raise
        finally:
            self.stopping.time_to_save = None
            self.progress.close()
            without_hiding_an_error(note)
        self.recorder.write()
        if self.stopping.cause is not None:
            self.stopping.agreed = True
            raise self.stopping.error or Terminated(self.stopping.cause)
        return trainer

    def _load(self, run: Run, new_head: bool) -> Any:
        with head_is_new(new_head):
            trainer = _trainer(run)
        self.recorder.loaded(trainer)
        check_exactness(self.record, run, trainer, self._say)
        return trainer

    def _resume_from(self) -> Path | None:
        """Return the newest valid checkpoint; None for a fresh start."""
        newest = newest_valid(Path(self.run.training.output_dir))
        if newest:
            self._say(f"resuming from {newest}")
        return newest

    def _with_callbacks(
        self, after_save: list[Callable[[], object]], validation: Validation
    ) -> tuple[Cycle, Run]:
        """Return the run with its session's callbacks."""
        run = self.run
        keep = run.training.save_total_limit
        # Our callback prunes, after the new checkpoint is sealed.
        run.training.save_total_limit = None
        cycle = Cycle(run.training, self.stopping)
        self.progress = ShowProgress(run.reward, run.folder)
        self.monitor = monitor = Monitor.of(run, self.stopping.stop, self._say)
        return cycle, run.with_callbacks(
            *filter(None, (monitor,)),
            cycle,
            *validation.callbacks,
            CheckpointManifestCallback(
                keep,
                keep_best=run.training.load_best_model_at_end,
                monitor=monitor,
                in_use=self.publication.in_use,
            ),
            self.progress,
            AfterSave(after_save),
            StopIfTrained(validation),
        )

    def _say(self, text: str) -> None:
        if self.main:
            say(text)


def _trainer(run: Run) -> Any:
    trainer = run.trainer_class.from_run(run)
    check_continued(run, trainer.accelerator.unwrap_model(trainer.model))
    remove_printers(trainer)
    return trainer


def without_hiding_an_error(note: Callable[[], object]) -> None:
    """Call `note`; if it fails after training failed, print that and raise the first error."""
    first = sys.exception()
    try:
        note()
    except Exception as second:
        if first is None:
            raise
        print(f"the progress of training could not be recorded: {second}", file=sys.stderr)
