"""Push each checkpoint while training goes on, in the background, in order.

A push that fails is reported at once, and tried again at the next save and at the end; checkpoints
that are not on the Hub then are listed, with the command that finishes them.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import PublishError
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.finish import finish_command, first_line
from hf_rlhf.hub.layout import complete_steps
from hf_rlhf.hub.publishing import push_run
from hf_rlhf.hub.retries import is_transient
from hf_rlhf.storage.record import RunRecord, load_record

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
        hub = connect()
        self._hub = replace(hub, retries=replace(hub.retries, say=self._say))
        self._records: dict[int, RunRecord] = {}
        """Step -> the record as it was then."""
        self._pushes: dict[int, Future[dict[str, str]]] = {}
        self._reported: dict[int, str] = {}
        """Step -> the reason that was reported last."""
        self._unsent: set[int] = set()
        """Steps whose pushes did not end in time."""
        self._draining = False
        disable_progress_bars()  # they would run through the lines of training

    @classmethod
    def of(cls, run: Path, spec: PublishSpec, record: RunRecord) -> "CheckpointPushes | None":
        """Return the pushes of a run that asks for them; unpublished checkpoints are queued."""
        if spec.repo_id is None or not spec.checkpoints:
            return None
        pushes = cls(run, spec)
        done = record.published().get("steps") or {}
        for step in complete_steps(run):
            if str(step) not in done:
                pushes.add(step, record)
        return pushes

    def add(self, step: int, record: RunRecord) -> None:
        """Push the checkpoint of `step`, which is sealed, and again those that failed so far."""
        self._retry_failed()
        self._records[step] = record.model_copy(deep=True)
        self._submit(step)

    def waiting(self) -> set[int]:
        """Return the steps whose checkpoints should stay: the next to be pushed, and the newest.

        All that are not on the Hub would fill the disk while it is down.
        """
        unpublished = [step for step, push in self._pushes.items() if not _ok(push)]
        return {*unpublished[:1], *unpublished[-1:]}

    def drain(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` for the pushes; without them, also try failed ones once more.

        Without `seconds` it takes as long as the transfers do; a Hub that does not answer is
        waited for once, as long as for one step of a push.
        """
        if seconds is None:
            self._draining = True
            self._retry_failed()
        try:
            wait(self._pushes.values(), seconds)
        finally:
            self._unsent = {step for step, push in self._pushes.items() if not push.done()}
            for push in self._pushes.values():
                push.cancel()
            if not self._hub.retries.ended.done():
                self._hub.retries.ended.set_result(None)

    def update_record(self, record: RunRecord) -> None:
        """Put into the record which checkpoints are published, and where."""
        steps = dict(record.published().get("steps") or {})
        if (self._run / "run.json").exists():  # a command may have published some meanwhile
            steps |= load_record(self._run).published().get("steps") or {}
        steps |= {str(step): push.result() for step, push in self._pushes.items() if _ok(push)}
        if steps:
            record.publish = {
                **record.published(),
                "steps": {step: steps[step] for step in sorted(steps, key=int)},
            }

    def unpublished(self, record: RunRecord) -> dict[int, str]:
        """Return step -> why it is not on the Hub, for every checkpoint that is not."""
        self.update_record(record)
        done, on_disk = record.published().get("steps") or {}, set(complete_steps(self._run))
        unpublished = {}
        for step in sorted({*self._pushes, *on_disk} - {int(step) for step in done}):
            unpublished[step] = self._reason(step)
            if step not in on_disk:
                unpublished[step] += "; the checkpoint was deleted since (save_total_limit)"
        return unpublished

    def _reason(self, step: int) -> str:
        push = self._pushes.get(step)
        if push is None or push.cancelled():
            return "the run ended before it was sent"
        if step in self._unsent or not push.done():
            return "its push was in progress"
        return first_line(push.exception() or PublishError("it was not sent"))

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

    def _retry_failed(self) -> None:
        for step, push in self._pushes.items():
            if push.done() and not _ok(push):
                self._submit(step)

    def _submit(self, step: int) -> None:
        self._pushes[step] = self._hub.api.run_as_future(self._push, step)

    def _push(self, step: int) -> dict[str, str]:
        try:
            published, _, _ = push_run(self._hub, self._run, self._records[step], self._spec, step)
        except Exception as error:
            self._report(step, first_line(error))
            if self._draining and is_transient(error):
                # The others are not waited for as long: the run is to end.
                retries = replace(self._hub.retries, seconds=0.0)
                self._hub = replace(self._hub, retries=retries)
            raise
        self._say(f"checkpoint of step {step} published: {published.url}")
        return published.where()

    def _report(self, step: int, failure: str) -> None:
        """Report a failed push, once for each reason, and briefly if another step had the same."""
        if self._reported.get(step) != failure:
            reason = "for the same reason" if failure in self._reported.values() else failure
            self._say(f"checkpoint of step {step} not published: {reason}")
        self._reported[step] = failure


def _ok(push: "Future[Any]") -> bool:
    return push.done() and not push.cancelled() and push.exception() is None
