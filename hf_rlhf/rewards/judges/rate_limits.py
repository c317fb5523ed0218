"""Limits on the calls of one run to one server.

Several rewards share a judge, and trainers call it from several threads and event loops, so a limit
holds for the whole process. The processes of a launch each take an equal share of it. Runs do not
see each other: where several use one server, divide its limits among them.
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
_MINUTE_S = 60.0


@dataclass
class Booking:
    """A permitted call. Set `tokens` to the tokens that it used, once the server has sent them."""

    tokens: int
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Limits:
    """The limits on one server, for all processes together; None for a rate is no limit.

    Raises JudgeError for a limit below the number of processes, of which none could have a share.
    """

    server: str
    """Equal strings share their limits."""
    max_concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_concurrency", "requests_per_minute", "tokens_per_minute"):
            limit = getattr(self, name)
            if limit is not None and limit < processes():
                raise JudgeError(
                    f"`{name}` of {self.server} is {limit}, for {processes()} processes "
                    f"together: less than one each. Set it to at least {processes()}, or launch "
                    "fewer processes."
                )

    @asynccontextmanager
    async def call(self, tokens: int) -> AsyncIterator[Booking]:
        """Wait for permission to make one call of about `tokens` tokens, and hold it."""
        calls = _CALLS.setdefault(self.server, _Calls())
        poll = _SHORTEST_WAIT
        while isinstance(booking := calls.start(self, tokens), float):
            await asyncio.sleep(max(booking, poll * random.uniform(0.5, 1.0)))
            poll = min(2 * poll, _LONGEST_WAIT)
        try:
            yield booking
        finally:
            calls.end()


class _Calls:
    """The calls of this process to one server: those under way and those of the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._recent: deque[Booking] = deque()

    def start(self, limits: Limits, tokens: int) -> Booking | float:
        """Enter a call if the limits allow it, else return for how many seconds to wait at least.

        That is 0 where a call under way has to end first, which may happen at any time.
        """
        with self._lock:
            if self._under_way >= limits.max_concurrency // processes():
                return 0.0
            booking = Booking(tokens)
            while self._recent and self._recent[0].at <= booking.at - _MINUTE_S:
                self._recent.popleft()
            # A call larger than the limit on tokens goes alone, instead of never.
            if self._recent and not self._allows(limits, tokens):
                return self._recent[0].at + _MINUTE_S - booking.at
            if limits.requests_per_minute is not None or limits.tokens_per_minute is not None:
                self._recent.append(booking)
            self._under_way += 1
            return booking

    def end(self) -> None:
        """Count a call as done."""
        with self._lock:
            self._under_way -= 1

    def _allows(self, limits: Limits, tokens: int) -> bool:
        requests, budget = limits.requests_per_minute, limits.tokens_per_minute
        if requests is not None and len(self._recent) >= requests // processes():
            return False
        used = sum(booking.tokens for booking in self._recent)
        return budget is None or used + tokens <= budget // processes()


_CALLS: dict[str, _Calls] = {}
# A forked child has its parent's counts, and a lock that another thread may have held.
os.register_at_fork(after_in_child=_CALLS.clear)
