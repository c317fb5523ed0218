"""Push each checkpoint while training goes on, and lose sight of none.

One thread pushes, newest first, what was set aside of the checkpoints when they were saved. A
push that fails is said at once, tried again at the next save and at the end; what is not on the
Hub then is listed, with the command that finishes it.
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
from hf_rlhf.hub.outbox import complete_steps, note_step, outbox, published_steps, set_aside
from hf_rlhf.hub.publishing import finish_command, push_run
from hf_rlhf.hub.retries import RetryPolicy, is_transient
from hf_rlhf.storage.record import RunRecord

ASIDE_BYTES = 10 * 10**9
"""How much may be set aside; beyond it the oldest are left to the rotation of checkpoints."""
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
        # No merging while training; where there is no adapter, all weights go.
        self._spec = replace(spec, merged=False, revision=None)
        self._say = say or (lambda line: print(line, flush=True))
        self._changed = threading.Condition()
        self._waiting: dict[int, RunRecord] = {}
        """Step -> the record as it was then, of what is to be pushed."""
        self._failed: dict[int, tuple[str, RunRecord]] = {}
        self._told: dict[int, str] = {}
        """Step -> the reason that was last said of it."""
        self._seen: set[int] = set()
        self._pushing: int | None = None
        self._closed = False
        self._given_up = threading.Event()
        self._hub = connect(patience=RetryPolicy(given_up=self._given_up, say=self._say))
        # They would run through the lines of training.
        self._bars_were_off = are_progress_bars_disabled()
        disable_progress_bars()
        # A daemon: what the network does must not keep a process that was asked to end.
        self._thread = threading.Thread(target=self._work, name="checkpoint-pushes", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, run: Path, spec: PublishSpec, record: RunRecord) -> "CheckpointPushes | None":
        """Return the pushes of a run that asks for them, begun with what is left from before."""
        if spec.repo_id is None or not spec.checkpoints:
            return None
        pushes = cls(run, spec)
        pushes.take_up(record)
        return pushes

    def saved(self, step: int, record: RunRecord) -> None:
        """Push the checkpoint of `step`, which is sealed, and again what has failed so far."""
        checkpoint = self._run / "checkpoints" / f"checkpoint-{step}"
        try:
            set_aside(checkpoint, self._run, step)
        except OSError as error:  # a full disk, say: then it is pushed from where it is
            self._say(f"checkpoint of step {step} not set aside: {error.strerror or error}")
        self._enqueue({step: record.model_copy(deep=True)})
        self._bound_aside()

    def take_up(self, record: RunRecord) -> None:
        """Push what an earlier session of the run has not: it ended before it could."""
        done = published_steps(self._run, record)
        steps = [step for step in complete_steps(self._run) if str(step) not in done]
        self._enqueue({step: record.model_copy(deep=True) for step in steps})

    def settle(self, seconds: float | None = None) -> None:
        """Push what waits and wait for it, up to `seconds`; without them, what failed once more.

        Without `seconds` it takes as long as the transfers do; a Hub that does not answer is
        waited for once, by the patience of one push.
        """
        with self._changed:
            if seconds is None:
                self._waiting |= {step: record for step, (_, record) in self._failed.items()}
                self._failed = {}
            self._closed = True
            self._changed.notify_all()
        try:
            self._thread.join(seconds)
        finally:
            self._given_up.set()
            if not self._bars_were_off:
                enable_progress_bars()

    def remember(self, record: RunRecord) -> None:
        """Put into the record which checkpoints are published, and where."""
        if steps := published_steps(self._run, record):
            record.publish = {**record.published(), "steps": steps}

    def unpublished(self, record: RunRecord) -> dict[int, str]:
        """Return step -> why it is not on the Hub, for every checkpoint that is not."""
        done = {int(step) for step in published_steps(self._run, record)}
        there = set(complete_steps(self._run))
        with self._changed:
            reasons = {step: why for step, (why, _) in self._failed.items()}
            reasons |= dict.fromkeys(self._waiting, "the run ended before it was sent")
            if self._pushing is not None:
                reasons[self._pushing] = "its push was under way"
            visited = set(self._seen)
        result = {}
        for step in sorted((visited | there) - done):
            why = reasons.get(step, "it was not sent")
            if step not in there:
                why += "; the checkpoint was deleted since (save_total_limit)"
            result[step] = why
        return result

    def told(self, record: RunRecord) -> str | None:
        """Return what is not published and how to finish it; None if everything is."""
        missing = self.unpublished(record)
        if not missing:
            return None
        lines = [f"  {self._spec.repo_id} at step-{step}: {why}" for step, why in missing.items()]
        finish = finish_command(self._run, self._spec, "all")
        return (
            f"{len(missing)} checkpoints are not published:\n"
            + "\n".join(lines)
            + f"\nTo finish:\n  {finish}"
        )

    def _enqueue(self, more: Mapping[int, RunRecord]) -> None:
        with self._changed:
            self._waiting |= {step: record for step, (_, record) in self._failed.items()}
            self._failed = {}
            self._waiting |= more
            self._seen |= more.keys()
            self._changed.notify_all()

    def _bound_aside(self) -> None:
        """Give back what the oldest take of those that wait, beyond ASIDE_BYTES."""
        taken = 0
        with self._changed:  # so that none of them begins to be pushed
            waiting = sorted({*self._waiting, *self._failed}, reverse=True)
            for step in waiting:
                folder = outbox(self._run, step)
                taken += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                if taken > ASIDE_BYTES and step != waiting[0]:
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
            except Exception as error:  # noqa: BLE001 - whatever it was, it is told
                failure = _first_line(error)
                self._say_why(step, failure)
                if self._closed and is_transient(error):
                    # The others are not waited for as long: the run is to end.
                    hub = replace(hub, patience=replace(hub.patience, seconds=0.0))
            with self._changed:
                self._pushing = None
                if failure is not None and step not in self._waiting:
                    self._failed[step] = (failure, record)
                self._changed.notify_all()

    def _say_why(self, step: int, failure: str) -> None:
        """Say why a push failed, unless it was said of this step, and briefly if of another."""
        known = failure in self._told.values()
        if self._told.get(step) != failure:
            why = "for the same reason" if known else failure
            self._say(f"checkpoint of step {step} not published: {why}")
        self._told[step] = failure

    def _next(self) -> tuple[int, RunRecord] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if not self._waiting or self._given_up.is_set():
                return None
            step = max(self._waiting)
            self._pushing = step
            return step, self._waiting.pop(step)


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if isinstance(error, HfRlhfError) else f"{type(error).__name__}: {text}"
