"""Push each checkpoint in the background during training, in order.

A failed push is reported at once, and retried at the next save and at the end. Checkpoints that are
still not on the Hub are listed with the command that finishes them.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

from hf_rlhf.config.schema import PublishSpec
from hf_rlhf.errors import PublishError, first_line
from hf_rlhf.hub.client import connect
from hf_rlhf.hub.finish import finish_command
from hf_rlhf.hub.layout import complete_steps
from hf_rlhf.hub.publishing import push_run
from hf_rlhf.hub.retries import is_transient
from hf_rlhf.storage.record import RunRecord, load_record

INTERRUPTED_S = 10.0
"""How long an interrupted run waits for the current push."""


class CheckpointPushes:
    """The pushes of a run. Call its methods from the main thread of the main process.

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
        disable_progress_bars()  # they would mix with training's output

    @classmethod
    def of(cls, run: Path, spec: PublishSpec, record: RunRecord) -> "CheckpointPushes | None":
        """Return the pushes of a run, if enabled, with unpublished checkpoints queued."""
        if spec.repo_id is None or not spec.checkpoints:
            return None
        pushes = cls(run, spec)
        done = record.published().get("steps") or {}
        for step in complete_steps(run):
            if str(step) not in done:
                pushes.add(step, record)
        return pushes

    def add(self, step: int, record: RunRecord) -> None:
        """Push the sealed checkpoint of `step`, and retry failed checkpoints."""
        self._retry_failed()
        self._records[step] = record.model_copy(deep=True)
        self._submit(step)

    def waiting(self) -> set[int]:
        """Return the steps whose checkpoints must stay: the next to push, and the newest.

        All unpublished checkpoints would fill the disk while the Hub is down.
        """
        unpublished = [step for step, push in self._pushes.items() if not _ok(push)]
        return {*unpublished[:1], *unpublished[-1:]}

    def drain(self, seconds: float | None = None) -> None:
        """Wait up to `seconds` for the pushes; without a limit, also retry failed pushes once.

        Without `seconds` it waits for all transfers; an unresponsive Hub is waited for once, as
        long as for a single step of a push.
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
        """Record which checkpoints are published, and where."""
        steps = dict(record.published().get("steps") or {})
        if (self._run / "run.json").exists():  # a command may have published checkpoints meanwhile
            steps |= load_record(self._run).published().get("steps") or {}
        steps |= {str(step): push.result() for step, push in self._pushes.items() if _ok(push)}
        if steps:
            record.publish = {
                **record.published(),
                "steps": {step: steps[step] for step in sorted(steps, key=int)},
            }

    def unpublished(self, record: RunRecord) -> dict[int, str]:
        """Return step -> reason for every checkpoint that is not on the Hub."""
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
                # Do not wait as long for the others: the run must end.
                retries = replace(self._hub.retries, seconds=0.0)
                self._hub = replace(self._hub, retries=retries)
            raise
        self._say(f"checkpoint of step {step} published: {published.url}")
        return published.where()

    def _report(self, step: int, failure: str) -> None:
        """Report a failed push once per reason, and briefly if another step failed likewise."""
        if self._reported.get(step) != failure:
            reason = "for the same reason" if failure in self._reported.values() else failure
            self._say(f"checkpoint of step {step} not published: {reason}")
        self._reported[step] = failure


def _ok(push: "Future[Any]") -> bool:
    return push.done() and not push.cancelled() and push.exception() is None
