"""Push each checkpoint while training goes on.

One thread pushes, newest first, the files that were staged when a checkpoint was saved. A push that
fails is reported at once, and tried again at the next save and at the end; checkpoints that are not
on the Hub then are listed, with the command that finishes them.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from huggingface_hub.utils import (  # type: ignore[attr-defined]
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import HfRlhfError
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.finish import finish_command
from hf_rlhf.hub.outbox import (
    complete_steps,
    note_step,
    published_steps,
    stage_checkpoint,
    staged,
)
from hf_rlhf.hub.publishing import push_run
from hf_rlhf.hub.retries import RetryPolicy, is_transient
from hf_rlhf.storage.record import RunRecord

STAGED_BYTES = 10 * 10**9
"""The most that may be staged; beyond it the oldest are left to the rotation of checkpoints."""
INTERRUPTED_S = 10.0
"""How long a run that is asked to end waits for the push under way."""


class CheckpointPushes:
    """The pushes of one run. Its methods are called by the main thread of the main process.

    Args:
        run: the run folder.
        spec: where to push; its `repo_id` is set.
        say: prints a line, from any thread.
    """

    def __init__(
        self, run: Path, spec: PublishSpec, say: Callable[[str], None] | None = None
    ) -> None:
        self._run = run
        # No merging while training; without an adapter, all weights are pushed.
        self._spec = replace(spec, merged=False, revision=None)
        self._say = say or (lambda line: print(line, flush=True))
        self._changed = threading.Condition()
        self._waiting: dict[int, RunRecord] = {}
        """Step -> the record as it was then, of checkpoints to push."""
        self._failed: dict[int, tuple[str, RunRecord]] = {}
        self._reported: dict[int, str] = {}
        """Step -> the last reported reason."""
        self._steps: set[int] = set()
        self._pushing: int | None = None
        self._closed = False
        self._abandoned = threading.Event()
        self._hub = connect(retries=RetryPolicy(abandoned=self._abandoned, say=self._say))
        # They would run through the lines of training.
        self._bars_were_off = are_progress_bars_disabled()
        disable_progress_bars()
        # A daemon: the network must not keep a process that was asked to end.
        self._thread = threading.Thread(target=self._work, name="checkpoint-pushes", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, run: Path, spec: PublishSpec, record: RunRecord) -> "CheckpointPushes | None":
        """Return the pushes of a run that wants them, begun with those left from before."""
        if spec.repo_id is None or not spec.checkpoints:
            return None
        pushes = cls(run, spec)
        pushes.resume(record)
        return pushes

    def add(self, step: int, record: RunRecord) -> None:
        """Push the checkpoint of `step`, which is sealed, and again those that failed so far."""
        checkpoint = self._run / "checkpoints" / f"checkpoint-{step}"
        try:
            stage_checkpoint(checkpoint, self._run, step)
        except OSError as error:  # a full disk, say: then it is pushed from where it is
            self._say(f"checkpoint of step {step} not staged: {error.strerror or error}")
        self._enqueue({step: record.model_copy(deep=True)})
        self._limit_staged()

    def resume(self, record: RunRecord) -> None:
        """Push the checkpoints that an earlier session of the run did not."""
        done = published_steps(self._run, record)
        steps = [step for step in complete_steps(self._run) if str(step) not in done]
        self._enqueue({step: record.model_copy(deep=True) for step in steps})

    def drain(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` for the pushes; without them, also try failed ones once more.

        Without `seconds` it takes as long as the transfers do; a Hub that does not answer is
        waited for once, as long as for one push.
        """
        with self._changed:
            if seconds is None:
                self._retry_failed()
            self._closed = True
            self._changed.notify_all()
        try:
            self._thread.join(seconds)
        finally:
            self._abandoned.set()
            if not self._bars_were_off:
                enable_progress_bars()

    def update_record(self, record: RunRecord) -> None:
        """Put into the record which checkpoints are published, and where."""
        if steps := published_steps(self._run, record):
            record.publish = {**record.published(), "steps": steps}

    def unpublished(self, record: RunRecord) -> dict[int, str]:
        """Return step -> why it is not on the Hub, for every checkpoint that is not."""
        done = {int(step) for step in published_steps(self._run, record)}
        on_disk = set(complete_steps(self._run))
        with self._changed:
            reasons = {step: reason for step, (reason, _) in self._failed.items()}
            reasons |= dict.fromkeys(self._waiting, "the run ended before it was sent")
            if self._pushing is not None:
                reasons[self._pushing] = "its push was in progress"
            steps = self._steps | on_disk
        unpublished = {}
        for step in sorted(steps - done):
            reason = reasons.get(step, "it was not sent")
            if step not in on_disk:
                reason += "; the checkpoint was deleted since (save_total_limit)"
            unpublished[step] = reason
        return unpublished

    def summary(self, record: RunRecord) -> str | None:
        """List the unpublished checkpoints and how to finish them; None if there are none."""
        missing = self.unpublished(record)
        if not missing:
            return None
        lines = [f"  {self._spec.repo_id} at step-{step}: {why}" for step, why in missing.items()]
        finish = finish_command(self._run, self._spec, "all")
        return "\n".join(
            [f"{len(missing)} checkpoints are not published:", *lines, "To finish:", f"  {finish}"]
        )

    def _enqueue(self, more: Mapping[int, RunRecord]) -> None:
        with self._changed:
            self._retry_failed()
            self._waiting |= more
            self._steps |= more.keys()
            self._changed.notify_all()

    def _retry_failed(self) -> None:
        self._waiting |= {step: record for step, (_, record) in self._failed.items()}
        self._failed = {}

    def _limit_staged(self) -> None:
        """Delete the staged files of the oldest checkpoints that wait, beyond STAGED_BYTES."""
        size = 0
        with self._changed:  # so that none of them begins to be pushed
            waiting = sorted({*self._waiting, *self._failed}, reverse=True)
            for step in waiting:
                folder = staged(self._run, step)
                size += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                if size > STAGED_BYTES and step != waiting[0]:
                    shutil.rmtree(folder, ignore_errors=True)

    def _work(self) -> None:
        hub = self._hub
        while (job := self._next()) is not None:
            step, record = job
            try:
                published, _, _ = push_run(hub, self._run, record, self._spec, step)
                note_step(self._run, step, published.where())
                failure = None
                self._say(f"checkpoint of step {step} published: {published.url}")
            except Exception as error:  # noqa: BLE001 - whatever it was, it is reported
                failure = _first_line(error)
                self._report(step, failure)
                if self._closed and is_transient(error):
                    # The others are not waited for as long: the run is to end.
                    hub = replace(hub, retries=replace(hub.retries, seconds=0.0))
            with self._changed:
                self._pushing = None
                if failure is not None and step not in self._waiting:
                    self._failed[step] = (failure, record)
                self._changed.notify_all()

    def _report(self, step: int, failure: str) -> None:
        """Report a failed push, once for each reason, and briefly if another step had the same."""
        if self._reported.get(step) != failure:
            reason = "for the same reason" if failure in self._reported.values() else failure
            self._say(f"checkpoint of step {step} not published: {reason}")
        self._reported[step] = failure

    def _next(self) -> tuple[int, RunRecord] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting or self._abandoned.is_set():
                return None
            step = max(self._waiting)
            self._pushing = step
            return step, self._waiting.pop(step)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, HfRlhfError) else f"{type(error).__name__}: {text}"
