"""Scripted faults, to test how a client handles them.

A `Fault` selects requests by a pattern over `METHOD /path`, and happens to the next few: another
answer, a delay, a dropped connection; before the request takes effect, or after it did::

    with serve(folder) as hub:
        hub.faults.add(Fault("POST .*/commit/", status=504, after=True))   # it lands, then 504
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Fault:
    """What happens to the next `times` requests that match.

    Args:
        match: regular expression, searched in `METHOD /path` (the path decoded).
        status: the answer's status.
        times: how many requests it happens to.
        retry_after: sent as `Retry-After`: seconds, or a date as text.
        body: the answer's body, sent as JSON whatever it is. With status 200, a wrong answer.
        drip: seconds between the bytes of the answer's body.
        after: let the request take effect first, and lose its answer.
        drop: close the connection instead of answering.
        delay: seconds to wait first; with `status=None`, all that happens.
    """

    match: str
    status: int | None = 503
    times: int = 1
    retry_after: int | str | None = None
    body: str | None = None
    drip: float = 0.0
    after: bool = False
    drop: bool = False
    delay: float = 0.0


class Faults:
    """The faults still to come, and every request so far. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, int]] = []
        self._requests: list[str] = []

    def add(self, *faults: Fault) -> None:
        """Add faults; when several match a request, the one added first happens."""
        with self._lock:
            self._left += [(fault, fault.times) for fault in faults]

    def clear(self) -> None:
        """Forget the faults still to come, and the requests so far."""
        with self._lock:
            self._left.clear()
            self._requests.clear()

    def requests(self, match: str = "") -> list[str]:
        """Return the requests so far, as `METHOD /path`, that match a regular expression."""
        with self._lock:
            return [line for line in self._requests if re.search(match, line)]

    def take(self, line: str) -> Fault | None:
        """Note a request, and return the fault that happens to it, if one does."""
        with self._lock:
            self._requests.append(line)
            for index, (fault, left) in enumerate(self._left):
                if re.search(fault.match, line):
                    self._left[index : index + 1] = [(fault, left - 1)] if left > 1 else []
                    return fault
        return None


class FaultMiddleware:
    """Lets faults happen to the requests on their way to `app`.

    Args:
        app: the application.
        faults: what is to happen.
        drop: closes the connection of a request, given its ASGI scope.
    """

    def __init__(self, app: ASGIApp, faults: Faults, drop: Callable[[Scope], None]) -> None:
        self._app = app
        self._faults = faults
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        fault = None
        if scope["type"] == "http":
            fault = self._faults.take(f"{scope['method']} {scope['path']}")
        if fault is None:
            await self._app(scope, receive, send)
            return
        await asyncio.sleep(fault.delay)
        if fault.drip:
            send = _dripping(send, fault.drip)
        if fault.status is None and not fault.drop:
            await self._app(scope, receive, send)
            return
        if fault.after:
            await self._app(scope, receive, _nowhere)
        elif not fault.drop:
            await _drain(receive)
        if fault.drop:
            self._drop(scope)
            # The server takes note of the lost connection first, and does not ask for an answer.
            await asyncio.sleep(0)
        else:
            await _answer(fault)(scope, receive, send)


def _answer(fault: Fault) -> Response:
    headers = {"X-Error-Message": "injected fault"}
    if fault.retry_after is not None:
        headers["Retry-After"] = str(fault.retry_after)
    body = json.dumps({"error": "injected fault"}) if fault.body is None else fault.body
    return Response(body, fault.status or 503, headers, "application/json")


def _dripping(send: Send, seconds: float) -> Send:
    """Return a `send` that waits between the bytes of a body."""

    async def drip(message: Message) -> None:
        body = message.get("body", b"")
        if not body:
            await send(message)
        for end in range(1, len(body) + 1):
            more = end < len(body) or message.get("more_body", False)
            await send({**message, "body": body[end - 1 : end], "more_body": more})
            await asyncio.sleep(seconds)

    return drip


async def _nowhere(message: Message) -> None:
    """Lose a message of the answer."""


async def _drain(receive: Receive) -> None:
    """Read the body to its end: a client that is still sending would not see the answer."""
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
