"""Publish a run and, during training, its checkpoints, if the run file says so."""

from shlex import quote

from hf_rlhf.errors import PublishError
from hf_rlhf.hub.checkpoints import INTERRUPTED_S, CheckpointPushes
from hf_rlhf.hub.finish import finish_command
from hf_rlhf.hub.publishing import publish
from hf_rlhf.runs.run import Run
from hf_rlhf.training.progress import say
from hf_rlhf.training.recorder import Recorder


class Publication:
    """The pushes of a run by its main process."""

    def __init__(self, run: Run, recorder: Recorder) -> None:
        self.run = run
        self.recorder = recorder
        self._pushes: CheckpointPushes | None = None

    def open(self) -> None:
        """Start with checkpoints that an earlier session did not push."""
        spec, record = self.run.spec.publish, self.recorder.record
        self._pushes = CheckpointPushes.of(self.run.folder, spec, record)

    def push_checkpoint(self, step: int) -> None:
        """Push a checkpoint in the background."""
        if self._pushes is not None:
            self._pushes.add(step, self.recorder.record)
            self._pushes.update_record(self.recorder.record)

    def in_use(self) -> set[int]:
        """Return the steps of checkpoints that wait for a push."""
        return self._pushes.waiting() if self._pushes is not None else set()

    def drain(self, *, interrupted: bool = False) -> list[str]:
        """Wait for the pushes of checkpoints; return a message if any failed."""
        if self._pushes is None:
            return []
        stopped: KeyboardInterrupt | None = None
        try:
            self._pushes.drain(INTERRUPTED_S if interrupted else None)
        except KeyboardInterrupt as error:
            stopped = error
        self._pushes.update_record(self.recorder.record)
        message = self._pushes.summary(self.recorder.record)
        # During an interruption, a second request ends only the wait.
        if stopped is not None and not interrupted:
            stopped.add_note(message or "every checkpoint is published")
            raise stopped
        return [message] if message else []

    def publish(self) -> None:
        """Publish the finished run, or print the command that does."""
        repo_id, folder = self.run.spec.publish.repo_id, self.run.folder
        if repo_id is None:
            is_hub_id = self.recorder.record.model.base_is_hub_id
            base = "" if is_hub_id else " --base_model YOU/BASE --push_base"
            say(
                "not published: `publish.repo_id` is not set. To publish:\n"
                f"  hf-rlhf publish {quote(str(folder))} --repo_id YOU/NAME{base}"
            )
            return
        unpublished: list[str] = []
        try:
            # Before the run itself: its card names the branches of its checkpoints.
            unpublished = self.drain()
            self.recorder.refresh()
            say(f"published: {publish(folder, repo_id=repo_id).url}")
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                finish = finish_command(folder, self.run.spec.publish, None)
                error.add_note(f"The run is not published, or not verified. To finish:\n  {finish}")
            for message in unpublished:
                error.add_note(message)
            raise
        if unpublished:
            raise PublishError("\n".join(unpublished))
