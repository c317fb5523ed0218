"""Caps on the calls of one run to one server.

Several rewards share a judge, and trainers call it from several threads and event loops, so a cap
holds for the whole process. The processes of a launch each take an equal share of it. Runs do not
see each other: where several use one server, divide its caps among them.
"""

import asyncio
import os
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hf_rlhf.distributed import processes
from hf_rlhf.errors import JudgeError

_SHORTEST_WAIT, _LONGEST_WAIT = 0.005, 0.05


@dataclass
class Booking:
    """A permitted call. Set `tokens` to what it really used, once that is known."""

    tokens: int
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Limits:
    """The caps on one server, of all processes together; None for a rate is no cap.

    Raises JudgeError for a cap below the number of processes, of which none could have a share.
    """

    server: str
    """What the caps are about; equal strings share them."""
    concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    minute: float = 60.0
    """Seconds in the window over which rates hold."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_minute", "tokens_per_minute"):
            cap = getattr(self, name)
            if cap is not None and cap < processes():
                setting = "max_concurrency" if name == "concurrency" else name
                raise JudgeError(
                    f"`{setting}` of {self.server} is {cap}, for {processes()} processes "
                    f"together: less than one each. Set it to at least {processes()}, or launch "
                    "fewer processes."
                )

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncIterator[Booking]:
        """Wait for permission to make one call of about `tokens` tokens, and hold it."""
        calls = _CALLS.setdefault(self.server, _Calls())
        wait = _SHORTEST_WAIT
        while not calls.start(self.concurrency // processes()):
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, _LONGEST_WAIT)
        try:
            while isinstance(booking := calls.book(self, tokens), float):
                await asyncio.sleep(booking)
            yield booking
        finally:
            calls.end()


class _Calls:
    """The calls of this process to one server: those under way and those of the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._recent: deque[Booking] = deque()

    def start(self, most: int) -> bool:
        """Count a call as under way, if fewer than `most` are."""
        with self._lock:
            allowed = self._under_way < most
            self._under_way += allowed
            return allowed

    def end(self) -> None:
        """Count a call as done."""
        with self._lock:
            self._under_way -= 1

    def book(self, limits: Limits, tokens: int) -> Booking | float:
        """Enter a call if the rates allow it, else return for how many seconds to wait."""
        with self._lock:
            booking = Booking(tokens)
            while self._recent and self._recent[0].at <= booking.at - limits.minute:
                self._recent.popleft()
            # A call larger than the cap on tokens goes alone, instead of never.
            if self._recent and not self._allows(limits, tokens):
                rest = self._recent[0].at + limits.minute - booking.at
                return float(max(_SHORTEST_WAIT, rest))
            if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
                self._recent.append(booking)
            return booking

    def _allows(self, limits: Limits, tokens: int) -> bool:
        requests, budget = limits.requests_per_minute, limits.tokens_per_minute
        if requests is not None and len(self._recent) >= requests // processes():
            return False
        used = sum(booking.tokens for booking in self._recent)
        return budget is None or used + tokens <= budget // processes()


_CALLS: dict[str, _Calls] = {}
# A forked child has its parent's counts, and a lock that another thread may have held.
os.register_at_fork(after_in_child=_CALLS.clear)
