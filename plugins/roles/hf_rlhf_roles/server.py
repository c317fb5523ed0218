"""An OpenAI-compatible server: `/v1/models`, `/v1/chat/completions`; a model is a role."""

import asyncio
import hmac
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, suppress
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any

from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf_roles.asked import ChatRequest
from hf_rlhf_roles.engine import Engine, Reply, Sampling, TooLong, Unspeakable

TOKEN_VARIABLE = "HF_RLHF_ROLES_TOKEN"
LOCAL_HOSTS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?", re.IGNORECASE)
_GRACE = 5
"""Seconds for answers in hand when the server is stopped."""


class Limits(BaseModel):
    """What one client may cost the others."""

    max_tokens: int = 1024
    max_body: int = 1 << 20
    """Bytes of a request."""
    max_waiting: int = 32
    """Requests in hand at once; more are told to come again."""
    body_seconds: float = 10.0
    """For the whole of a request to come; until then it is not in hand."""


def make_app(engine: Engine, limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """Return the application. With a token, requests carry `Authorization: Bearer TOKEN`.

    Without one, only those are answered that name this machine: LOCAL_HOSTS.
    """
    limits = limits or Limits()
    app = FastAPI(title="hf-rlhf roles", docs_url=None, redoc_url=None, openapi_url=None)
    service = _Service(engine, limits)
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/v1/models", service.models, methods=["GET"])
    app.add_api_route("/v1/models/{name}", service.model, methods=["GET"], response_model=None)
    app.add_api_route("/v1/chat/completions", service.chat, methods=["POST"], response_model=None)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _elsewhere)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(_Guard, limits=limits, token=token)
    return app


class _Service:
    """What answers requests."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self.engine = engine
        self.limits = limits
        # Each request in hand holds a thread while it waits for its turn.
        self.threads = CapacityLimiter(limits.max_waiting)
        self.created = int(time.time())

    async def health(self) -> dict[str, str]:
        return {"status": "ok"}

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [self._told(name) for name in self.engine.roles]}

    async def model(self, name: str) -> Any:
        try:
            self.engine.role(name)
        except ConfigError as error:
            return _unknown(error)
        return self._told(name)

    def _told(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "hf-rlhf-roles"}

    async def chat(self, asked: ChatRequest, request: Request) -> Any:
        most = self.limits.max_tokens
        wanted = asked.max_completion_tokens or asked.max_tokens
        if wanted is not None and wanted > most:
            said = f"max_tokens is {wanted}; this server gives at most {most}."
            return _error(400, said, param="max_tokens")
        sampling = Sampling(
            wanted or most,
            asked.temperature,
            asked.top_p,
            asked.seed,
            tuple(asked.stop),
            at_most=wanted is None,
        )
        messages = [message.model_dump() for message in asked.messages]
        stop = threading.Event()
        try:
            reply, pieces = await to_thread.run_sync(
                self.engine.stream, asked.model, messages, sampling, stop, limiter=self.threads
            )
        except ConfigError as error:
            return _unknown(error)
        except TooLong as error:
            return _error(400, str(error), code="context_length_exceeded", param="messages")
        except Unspeakable as error:
            return _error(400, str(error), param="messages")
        told = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        told |= {"model": asked.model}
        taken = _taken(pieces, stop, self.threads)
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = _events(taken, reply, told, usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return await _whole(taken, reply, told, request)


async def _whole(
    pieces: AsyncGenerator[str], reply: Reply, told: dict[str, Any], request: Request
) -> Any:
    try:
        async with aclosing(pieces):
            async for _ in pieces:
                if await request.is_disconnected():
                    break
    except Exception as error:  # noqa: BLE001 - a model may raise anything, of which nobody hears
        return _error(500, f"generation failed: {type(error).__name__}: {error}")
    message = {"role": "assistant", "content": reply.text}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    return {**told, "object": "chat.completion", "choices": [choice], "usage": _usage(reply)}


async def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return _error(400, f"{where or 'request'}: {first['msg']}", param=where or None)


async def _elsewhere(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    said = (
        f"{request.method} {request.url.path}: {error.detail}. There are GET /v1/models, "
        "GET /v1/models/NAME, POST /v1/chat/completions and GET /health."
    )
    return _error(error.status_code, said)


def _unknown(error: ConfigError) -> JSONResponse:
    said = "; ".join(str(problem) for problem in error.problems)
    return _error(404, said, code="model_not_found", param="model")


async def _broken(_: Request, error: Exception) -> JSONResponse:
    return _error(500, f"the server failed: {type(error).__name__}")


async def _taken(
    pieces: Generator[str], stop: threading.Event, threads: CapacityLimiter
) -> AsyncGenerator[str]:
    """Yield the pieces of a reply without holding up other requests; end it if nobody listens."""
    try:
        while (piece := await to_thread.run_sync(_next, pieces, limiter=threads)) is not None:
            yield piece
    finally:
        stop.set()
        # Closing waits for the generation to end, which is not for the event loop to do.
        with CancelScope(shield=True):
            await to_thread.run_sync(_close, pieces, limiter=threads)


def _close(pieces: Generator[str]) -> None:
    while (
        getgeneratorstate(pieces) == GEN_RUNNING
    ):  # a thread whose task was cancelled still waits for its piece
        time.sleep(0.01)
    pieces.close()


def _next(pieces: Iterator[str]) -> str | None:
    return next(pieces, None)


async def _events(
    pieces: AsyncGenerator[str], reply: Reply, told: dict[str, Any], usage: bool
) -> AsyncGenerator[str]:
    def event(delta: dict[str, str], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _sse({**told, "object": "chat.completion.chunk", "choices": [choice]})

    yield event({"role": "assistant", "content": ""})
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield event({"content": piece})
    except Exception as error:  # noqa: BLE001 - the status is sent already; the stream must say it
        yield _sse({"error": {"message": f"{type(error).__name__}: {error}", "type": "error"}})
        return
    yield event({}, reply.finish_reason)
    if usage:
        chunk = {**told, "object": "chat.completion.chunk", "choices": []}
        yield _sse({**chunk, "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def _sse(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.prompt_tokens + reply.completion_tokens
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": total,
    }


class _Guard:
    """Refuses strangers and oversized requests before they are read, and too many at once.

    As plain ASGI it holds a request's place from when it has come whole until the last byte is sent
    or the client is gone.
    """

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None) -> None:
        self.app = app
        self.limits = limits
        self.token = token
        self.inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refused(Request(scope))
        if refused is None and (counted := scope["method"] == "POST"):
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    receive = await _whole_body(receive)
                refused = self._refused(Request(scope))  # others may have come in the meantime
            except TimeoutError:
                seconds = self.limits.body_seconds
                refused = _error(408, f"The request did not come whole within {seconds:g} s.")
        if refused is not None:
            await refused(scope, receive, send)
            return
        self.inside += counted
        began = False

        async def watched(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except asyncio.CancelledError:  # the server is stopped, and its patience is over
            if not began:
                await _error(503, "The server was stopped.")(scope, receive, send)
        finally:
            self.inside -= counted

    def _refused(self, request: Request) -> JSONResponse | None:
        host = request.headers.get("host")  # browsers always send it
        if not self.token and host is not None and not LOCAL_HOSTS.fullmatch(host):
            said = f"This server is for localhost only; with {TOKEN_VARIABLE} set, for other names."
            return _error(403, said)
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        open_to_all = not self.token or request.url.path == "/health"
        if not (open_to_all or hmac.compare_digest(given.encode(), str(self.token).encode())):
            said = "Missing or wrong token: send `Authorization: Bearer TOKEN`."
            return _error(401, said, code="invalid_api_key")
        if request.method != "POST":
            return None
        length = request.headers.get("content-length", "")
        # Beside chunks, a Content-Length means nothing.
        chunked = "transfer-encoding" in request.headers
        if chunked or not (length.isascii() and length.isdecimal()):
            return _error(411, "The request does not say its Content-Length.")
        if len(length) > 18 or int(length) > self.limits.max_body:
            said = f"The request has {length} bytes; {self.limits.max_body} are the most."
            return _error(413, said, code="request_too_large")
        if self.inside >= self.limits.max_waiting:
            said = f"{self.limits.max_waiting} requests are in hand. Try again later."
            return _error(429, said, code="rate_limit_exceeded")
        return None


async def _whole_body(receive: Receive) -> Receive:
    """Take in what a request brings, and return what gives it again, then what follows."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    messages.reverse()

    async def again() -> Message:
        return messages.pop() if messages else await receive()

    return again


def _error(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status)


def check_host(host: str, *, allow_remote: bool) -> None:
    """Raise HfRlhfError where strangers could come in without a token."""
    if host in ("127.0.0.1", "localhost", "::1"):
        return
    if not (allow_remote and os.environ.get(TOKEN_VARIABLE)):
        raise HfRlhfError(
            f"--host {host} lets other machines in. Set {TOKEN_VARIABLE} to a token of your choice "
            "and add --allow_remote, or leave --host out."
        )


def open_port(host: str, port: int) -> socket.socket:
    """Take a port before anything is loaded; 0 takes a free one. Raises HfRlhfError."""
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except (OSError, OverflowError) as error:
        opened.close()
        raise HfRlhfError(f"{host}:{port} cannot be served on: {error}. See --port.") from error
    return opened


def serve(engine: Engine, opened: socket.socket, limits: Limits) -> None:
    """Serve on a port that is open until interrupted; what is in hand then has some seconds."""
    import uvicorn

    token = os.environ.get(TOKEN_VARIABLE) or None
    locked = f", token from {TOKEN_VARIABLE}" if token else ""
    host, port = opened.getsockname()[:2]
    greeting = (
        f"http://{f'[{host}]' if ':' in host else host}:{port}/v1 serves {', '.join(engine.roles)} "
        f"on one base{locked}. Ctrl-C stops it."
    )

    class Server(uvicorn.Server):
        """Says that it serves once it listens."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                print(greeting, flush=True)

    app = make_app(engine, limits, token)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_GRACE)
    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[opened])
