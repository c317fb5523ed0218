"""Ends a run when it is asked to: by SIGTERM, or because its launcher is gone.

`accelerate launch` of one process neither passes SIGTERM on nor takes its worker along when it
is killed: the worker would train on, holding the GPU and the run folder.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

LAUNCHED_BY = "HF_RLHF_LAUNCHED_BY"
"""Set by what starts runs and is to take them along when it ends, as `hf-rlhf sweep` does."""
LAUNCHERS = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID", LAUNCHED_BY)
"""What `accelerate launch` and `torchrun` set for the processes that they start, and ours."""
CLOSING_S = 5.0
"""How long the record and the card may take in any case, however short the grace."""
SAME_REQUEST_S = 2.0
"""For how long SIGTERM is the same request still: Slurm, `timeout` and others send it to a whole
group of processes, and torchrun, which is in it, passes it on."""
_KEEPING = (
    "interrupted: what is done is being kept, and the last line says how to go on (the prompt may "
    "be back before)."
)
_PARENT = os.getppid()  # as early as can be: a launcher may die while the libraries load


class Terminated(KeyboardInterrupt):
    """The run was asked to end and does so now, as after Ctrl-C."""


class Stopping:
    """While it is entered, ends the run when it is asked to.

    The first request raises Terminated in the main thread at once, unless `time_to_save` says
    that the next save is near enough: then training is left to get there, and Terminated comes
    when `grace` seconds have passed, at least CLOSING_S. A second request raises it in any case;
    what comes within SAME_REQUEST_S, and the launcher's end after SIGTERM, is no second one.

    Ctrl-C raises KeyboardInterrupt as ever, and says that what is done is being kept: a launcher
    gets it too and may be gone, and the prompt back, before that is so. That is no second request.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.cause: str | None = None
        """Who asked, once someone has."""
        self.time_to_save: Callable[[], float | None] | None = None
        """Set while training: the seconds until the next save is done, None if not known."""
        self._requested: float | None = None  # when this process itself was asked
        self._overdue = False
        self._over = threading.Event()
        self._launcher_gone = False
        self._interrupted = False  # by Ctrl-C
        self._handler: Any = None
        self._interrupt: Any = None

    def __enter__(self) -> Self:
        # Python hands signals to the main thread alone.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, self._asked)
            # One that is ignored, as of a job in the background, stays so.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._interrupt = signal.signal(signal.SIGINT, self._keyboard)
            if any(name in os.environ for name in LAUNCHERS):
                threading.Thread(target=self._watch_launcher, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if self._interrupt is not None:
            signal.signal(signal.SIGINT, self._interrupt)

    def _keyboard(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupted and int(os.environ.get("RANK") or 0) == 0:
            _say(_KEEPING)
        self._interrupted = True
        raise KeyboardInterrupt

    def _asked(self, number: int, frame: FrameType | None) -> None:
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
            return  # all processes have agreed to stop, and do
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
        # Not prctl(PR_SET_PDEATHSIG): it is Linux's, and speaks of the thread that started us.
        while not self._over.wait(0.5):
            if os.getppid() != _PARENT:
                # A launcher of one process dies of the SIGTERM that its group got.
                # Or of the Ctrl-C.
                if self._requested is None and not self._interrupted:
                    self._launcher_gone = True
                    _interrupt_main_thread()
                return


def _interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    # To that thread, so that a system call in which it waits returns.
    signal.pthread_kill(main, signal.SIGTERM)


def _say(text: str) -> None:
    # A signal may come in the middle of a print, which must not be entered twice.
    os.write(2, f"{text}\n".encode())
