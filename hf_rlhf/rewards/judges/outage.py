"""Whether a server answers, known to all calls of this process, so that an outage is one wait.

While a server is down, or asks to be left alone, one call at a time tries it, later each time;
the others wait for what it finds. The first answer lets all of them go on. A failure that befalls
one request while the server answers others is that request's own and none of this concerns it.
"""

import asyncio
import os
import random
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from hf_rlhf.errors import JudgeError
from hf_rlhf.rewards.judges.display_name import JUDGE, DisplayName
from hf_rlhf.rewards.judges.endpoint import Unavailable

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
FIRST_TOLD_S, TOLD_EVERY_S = 5.0, 30.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class Waiting:
    """What one call of a judge is ready to wait for, and since when it runs."""

    name: str
    """Which judge, for messages."""
    patience: float
    """Seconds without any answer after which it gives up."""
    started: float
    """`time.monotonic()`"""
    from_start: bool = True
    """Whether it waits, too, for a server that nobody has been at yet in this process."""
    called: DisplayName = JUDGE

    @property
    def how_to_go_on(self) -> str:
        """What to do when it has given up."""
        return (
            "Start it again and repeat the same command: what was answered is in the cache, and a "
            f"run goes on from its last checkpoint. `{self.called.setting('patience')}` is how "
            f"long a {self.called} waits."
        )


class Outage:
    """What is known of one server. Thread-safe; every event loop of the process shares it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered = 0.0
        self._since: float | None = None
        """Since when nobody was answered; None while it is up."""
        self._found = 0.0
        """When it was found to be down: what was sent before says nothing of its being up."""
        self._lost = 0.0
        self._tries = 0
        self._next = 0.0
        self._asked_for = False
        self._cause = ""
        self._probing = False
        self._told: float | None = None

    def lost(self) -> float:
        """Return for how many seconds, ever, the server was down or asked to be left alone."""
        with self._lock:
            return self._lost + (monotonic() - self._since if self._since is not None else 0.0)

    def answered(self, sent: float, name: str) -> None:
        """Note that the server answered, well or badly, a request that was sent then."""
        with self._lock:
            self._answered = now = monotonic()
            if self._since is None:
                return
            silent = now - self._since
            self._lost += silent
            if sent < self._found:
                self._since = now
                return
            self._since, self._tries = None, 0
            if self._told is not None:
                self._told = None
                print(f"{name} answers again after {_shown(silent)}.", file=sys.stderr, flush=True)

    def check_start(self, failure: Unavailable, waiting: Waiting) -> None:
        """Raise JudgeError where nobody ever was at the address, and the call expects somebody."""
        with self._lock:
            if waiting.from_start or self._answered or not failure.nobody:
                return
        raise JudgeError(
            f"{waiting.name} is not there: {failure}. Is the server running and the address right? "
            "A server that goes down later is waited for."
        )

    def failed(self, failure: Unavailable) -> bool:
        """Note a failure; say whether it is the server's, and so no fault of the request."""
        with self._lock:
            if self._answered > failure.sent and not failure.busy:
                return False
            now = monotonic()
            if self._since is None:
                self._since, self._found = max(failure.sent, self._answered), now
            elif now < self._next:
                return True  # one of the many that were under way when it went down
            self._tries += 1
            wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._tries - 1))
            self._asked_for = failure.after is not None
            if failure.after is not None:
                wait = failure.after
            self._next = now + wait + random.uniform(0.0, 0.1 * min(wait, 1.0))
            self._cause = str(failure)
            return True

    @asynccontextmanager
    async def turn(self, waiting: Waiting) -> AsyncIterator[bool]:
        """Wait until the server may be tried; say whether alone, to find out if it is up again.

        Raises JudgeError when patience is at its end.
        """
        probes = False
        while not (probes or self._is_up()):
            self._give_up_or_tell(waiting)
            probes = self._takes_probe()
            if not probes:
                await asyncio.sleep(_LOOK_S * random.uniform(0.5, 1.0))
        try:
            yield probes
        finally:
            if probes:
                self._probing = False

    def _is_up(self) -> bool:
        with self._lock:
            return self._since is None

    def _takes_probe(self) -> bool:
        with self._lock:
            if self._probing or self._since is None or monotonic() < self._next:
                return False
            self._probing = True
            return True

    def _give_up_or_tell(self, waiting: Waiting) -> None:
        with self._lock:
            if self._since is None:
                return
            now = monotonic()
            silent = now - self._since
            left = max(self._since, waiting.started) + waiting.patience - now
            if self._asked_for and self._next - now > left:
                raise JudgeError(
                    f"{waiting.name} asks to be left alone for {_shown(self._next - now)}, longer "
                    f"than its patience of {_shown(waiting.patience)} ({self._cause}). "
                    f"{waiting.how_to_go_on}"
                )
            if left <= 0:
                raise JudgeError(
                    f"{waiting.name} has not answered for {_shown(silent)}, longer than its "
                    f"patience of {_shown(waiting.patience)}. The last try: {self._cause}. "
                    f"{waiting.how_to_go_on}"
                )
            due = FIRST_TOLD_S if self._told is None else TOLD_EVERY_S
            if now - (self._told or self._since) >= due:
                self._told = now
                print(
                    f"{waiting.name} has not answered for {_shown(silent)} ({self._cause}); "
                    f"waiting up to {_shown(waiting.patience)}.",
                    file=sys.stderr,
                    flush=True,
                )


_OUTAGES: dict[str, Outage] = {}
if hasattr(os, "register_at_fork"):
    # A lock that another thread held at the fork would never be freed in the child.
    os.register_at_fork(after_in_child=_OUTAGES.clear)


def outage_of(server: str) -> Outage:
    """Return what this process knows of a server; equal strings are one server."""
    return _OUTAGES.setdefault(server, Outage())


def _shown(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
