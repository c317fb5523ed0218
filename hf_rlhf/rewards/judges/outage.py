"""Whether a server answers, known to all calls of this process, so that an outage is one wait.

While a server is down, or asks to be left alone, one call at a time tries it, later each time;
the others wait for its outcome. The first answer lets all of them go on. A failure that befalls
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
from hf_rlhf.rewards.judges.endpoint import Unavailable

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
FIRST_NOTICE_S, NOTICE_EVERY_S = 5.0, 30.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Waiting:
    """How long one call waits for a server, and since when it runs."""

    server: str
    """For messages: `The judge MODEL at URL`."""
    patience: float
    """Seconds without any answer after which it gives up."""
    started: float
    """`time.monotonic()`"""
    from_start: bool
    """Whether it waits, too, for a server that nobody has been at yet in this process."""
    cached: bool = True
    """Whether replies are kept for the next call."""

    @property
    def advice(self) -> str:
        """What to do when it has given up."""
        kept = "; what was answered is in the cache" if self.cached else ""
        return f"Start it again and repeat the same command{kept}. `patience` is how long it waits."


class Outage:
    """The state of one server. Thread-safe; every event loop of the process shares it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_answer = 0.0
        self._since: float | None = None
        """Since when nobody was answered; None while it is up."""
        self._detected = 0.0
        """When its first failure came back. An answer to what was sent before may have been under
        way when it went down, and so does not show that it is up again."""
        self._lost = 0.0
        self._tries = 0
        self._next_try = 0.0
        self._has_retry_after = False
        self._cause = ""
        self._probing = False
        self._last_notice: float | None = None

    def lost(self) -> float:
        """Return for how many seconds, ever, the server was down or asked to be left alone."""
        with self._lock:
            return self._lost + (monotonic() - self._since if self._since is not None else 0.0)

    def answered(self, sent: float, server: str) -> None:
        """Note that the server answered, well or badly, a request that was sent then."""
        with self._lock:
            self._last_answer = now = monotonic()
            if self._since is None:
                return
            silent = now - self._since
            self._lost += silent
            if sent < self._detected:
                self._since = now
                return
            self._since, self._tries = None, 0
            if self._last_notice is not None:
                self._last_notice = None
                _notify(f"{server} answers again after {_duration(silent)}.")

    def check_start(self, failure: Unavailable, waiting: Waiting) -> None:
        """Raise JudgeError where nobody ever answered, and the address is wrong or awaited."""
        with self._lock:
            if self._last_answer:
                return
        if failure.wrong_address:
            raise JudgeError(failure.wrong_address)
        if not waiting.from_start and failure.no_listener:
            raise JudgeError(
                f"{waiting.server} is not there: {failure}. Is the server running and the address "
                "right? A server that goes down later is waited for."
            )

    def failed(self, failure: Unavailable) -> bool:
        """Note a failure; return whether it is the server's, and so no fault of the request."""
        with self._lock:
            if self._last_answer > failure.sent and not failure.busy:
                return False
            now = monotonic()
            if self._since is None:
                self._since, self._detected = max(failure.sent, self._last_answer), now
            elif now < self._next_try:
                return True  # one of the many that were under way when it went down
            self._tries += 1
            wait = failure.retry_after
            self._has_retry_after = wait is not None
            if wait is None:
                wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (self._tries - 1))
            self._next_try = now + wait + random.uniform(0.0, 0.1 * min(wait, 1.0))
            self._cause = str(failure)
            return True

    @asynccontextmanager
    async def turn(self, waiting: Waiting) -> AsyncIterator[bool]:
        """Wait until the server may be tried; yield whether this call alone probes if it is up.

        Raises JudgeError when patience is at its end.
        """
        probes = False
        while not probes and self._since is not None:
            self._check_patience(waiting)
            probes = self._takes_probe()
            if not probes:
                await asyncio.sleep(_POLL_S * random.uniform(0.5, 1.0))
        try:
            yield probes
        finally:
            if probes:
                self._probing = False

    def _takes_probe(self) -> bool:
        with self._lock:
            if self._probing or self._since is None or monotonic() < self._next_try:
                return False
            self._probing = True
            return True

    def _check_patience(self, waiting: Waiting) -> None:
        """Raise JudgeError when patience is at its end; tell the user now and then of the wait."""
        with self._lock:
            if self._since is None:
                return
            now = monotonic()
            silent = f"{waiting.server} has not answered for {_duration(now - self._since)}"
            patience = _duration(waiting.patience)
            left = max(self._since, waiting.started) + waiting.patience - now
            if self._has_retry_after and self._next_try - now > max(left, 0.0):
                waited = _duration(max(waiting.patience - left, 0.0))
                raise JudgeError(
                    f"{waiting.server} asks to be left alone for "
                    f"{_duration(self._next_try - now)}; {waited} of its patience of {patience} "
                    f"have passed ({self._cause}). {waiting.advice}"
                )
            if left <= 0:
                raise JudgeError(
                    f"{silent}, longer than its patience of {patience}. "
                    f"The last try: {self._cause}. {waiting.advice}"
                )
            due = FIRST_NOTICE_S if self._last_notice is None else NOTICE_EVERY_S
            if now - (self._last_notice or self._since) >= due:
                self._last_notice = now
                _notify(f"{silent} ({self._cause}); waiting up to {patience}.")


_OUTAGES: dict[str, Outage] = {}
# A lock that another thread held at the fork would never be freed in the child.
os.register_at_fork(after_in_child=_OUTAGES.clear)


def outage_of(server: str) -> Outage:
    """Return the state of a server in this process; equal strings are one server."""
    return _OUTAGES.setdefault(server, Outage())


def _notify(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
