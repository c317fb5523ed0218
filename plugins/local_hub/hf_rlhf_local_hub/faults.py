"""Scripted faults, for testing how a client handles them.

A `Fault` selects requests by a pattern over `METHOD /path` and applies to the next few. It changes
the answer, delays it, or drops the connection, before or after the request takes effect::

    with serve(folder) as hub: hub.faults.add(Fault("POST .*/commit/", status=504, after=True))   #
        it lands, then 504
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
    """A fault of the next `times` requests that match.

    Args:
        match: regular expression, searched in `METHOD /path` (the path decoded).
        status: the answer's status.
        times: number of requests that it affects.
        retry_after: sent as `Retry-After`: seconds, or a date as text.
        body: the answer's body, always sent as JSON. With status 200, a wrong answer.
        drip: seconds between the bytes of the answer's body.
        after: let the request take effect first, and lose its answer.
        drop: close the connection instead of answering.
        delay: seconds to wait first; with `status=None`, the only effect.
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
    """The pending faults and the log of requests. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, int]] = []
        self._requests: list[str] = []

    def add(self, *faults: Fault) -> None:
        """Add faults; if several match a request, the first added applies."""
        with self._lock:
            self._left += [(fault, fault.times) for fault in faults]

    def clear(self) -> None:
        """Clear the pending faults and the log of requests."""
        with self._lock:
            self._left.clear()
            self._requests.clear()

    def requests(self, match: str = "") -> list[str]:
        """Return the requests so far, as `METHOD /path`, that match a regular expression."""
        with self._lock:
            return [line for line in self._requests if re.search(match, line)]

    def take(self, line: str) -> Fault | None:
        """Log a request, and return its fault, if any."""
        with self._lock:
            self._requests.append(line)
            for index, (fault, left) in enumerate(self._left):
                if re.search(fault.match, line):
                    self._left[index : index + 1] = [(fault, left - 1)] if left > 1 else []
                    return fault
        return None


class FaultMiddleware:
    """Applies faults to the requests of `app`.

    Args:
        app: the application.
        faults: the scripted faults.
        drop: closes the connection of a request, given its ASGI scope.
    """

    def __init__(self, app: ASGIApp, faults: Faults, drop: Callable[[Scope], None]) -> None:
        self._app = app
        self._faults = faults
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
            # The server notices the lost connection first, and does not wait for an answer.
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
    """Discard a message of the answer."""


async def _drain(receive: Receive) -> None:
    """Read the rest of the body: a client that is still sending would not see the answer."""
    more = True
    while more:
        message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
