"""End a run on SIGTERM, or when its launcher is gone.

`accelerate launch` of a single process neither forwards SIGTERM nor ends its worker when killed:
the worker would continue to train and hold the GPU and the run folder.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from hf_rlhf.steps.jobs import LAUNCHED_BY

LAUNCHERS = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID", LAUNCHED_BY)
"""Variables that `accelerate launch`, `torchrun` and our programs set for their processes."""
CLOSING_S = 5.0
"""Minimum time for record and card, even with a shorter grace."""
SAME_REQUEST_S = 2.0
"""Within this time another SIGTERM is the same request: Slurm, `timeout` and others send it to a
process group, in which torchrun forwards it."""
_INTERRUPTED = (
    "interrupted: saving what is done; the last line says how to continue (the shell prompt "
    "may return earlier)."
)
_PARENT = os.getppid()  # early, since a launcher may die while the libraries load


class Terminated(KeyboardInterrupt):
    """The run ends on request, like after Ctrl-C."""


class Stopping:
    """Ends the run on request while entered.

    The first request raises Terminated in the main thread at once, unless the next save is less
    than `grace` seconds away by `time_to_save`. Then training continues to that save, and
    Terminated is raised after `grace` seconds, at least CLOSING_S. A second request always raises
    it; a signal within SAME_REQUEST_S, or the launcher's end after SIGTERM, is no second request.

    Ctrl-C raises KeyboardInterrupt as usual, and prints that the work is being saved: the launcher
    also gets it and may return to the prompt earlier. Its end is no second request.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.cause: str | None = None
        """The reason of the request, once there is one."""
        self.time_to_save: Callable[[], float | None] | None = None
        """Set while training: the seconds until the next save is done, None if unknown."""
        self.error: BaseException | None = None
        """Raised in the place of Terminated, where `stop` was called."""
        self.agreed = False
        """Whether all processes have agreed to stop, and do so at the same step."""
        self._requested: float | None = None  # time of the request
        self._overdue = False
        self._over = threading.Event()
        self._launcher_gone = False
        self._interrupted = False  # by Ctrl-C
        self._handler: Any = None
        self._interrupt: Any = None

    def __enter__(self) -> Self:
        # Python delivers signals only to the main thread.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._on_sigterm)
            # If ignored, as in a background job, it stays ignored.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._interrupt = signal.signal(signal.SIGINT, self._on_sigint)
            if any(name in os.environ for name in LAUNCHERS):
                threading.Thread(target=self._watch_launcher, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if self._interrupt is not None:
            signal.signal(signal.SIGINT, self._interrupt)

    def stop(self, error: BaseException) -> None:
        """End training with `error` at the next boundary; every process must call this."""
        self.cause = self.cause or str(error)
        self.error = error

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupted and int(os.environ.get("RANK") or 0) == 0:
            _say(_INTERRUPTED)
        self._interrupted = True
        raise KeyboardInterrupt

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted and self._launcher_gone:
            return
        now = time.monotonic()
        if self._requested is not None:
            if self._overdue or now - self._requested >= SAME_REQUEST_S:
                raise Terminated(self.cause)
            return
        self._requested = now
        threading.Thread(target=self._deadline, daemon=True).start()
        if self.cause is not None:
            return  # all processes agreed to stop
        self.cause = "its launcher has ended" if self._launcher_gone else "it got SIGTERM"
        needed = self.time_to_save() if self.time_to_save is not None else None
        if needed is None or needed > self.grace:
            raise Terminated(self.cause)
        _say(f"stopping, as {self.cause}: the next save is about {needed:.0f} s away")

    def _deadline(self) -> None:
        if not self._over.wait(max(self.grace, CLOSING_S)):
            self._overdue = True
            _interrupt_main_thread()

    def _watch_launcher(self) -> None:
        # Not prctl(PR_SET_PDEATHSIG), which is Linux-only and tracks the thread that started us.
        while not self._over.wait(0.5):
            if os.getppid() != _PARENT:
                # A single-process launcher ends by the SIGTERM or Ctrl-C of its group.
                if self._requested is None and not self._interrupted:
                    self._launcher_gone = True
                    _interrupt_main_thread()
                return


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    # To the main thread, so that a blocking system call returns.
    signal.pthread_kill(main, signal.SIGTERM)


def _say(text: str) -> None:
    # A signal may interrupt a print, which is not reentrant.
    os.write(2, f"{text}\n".encode())
