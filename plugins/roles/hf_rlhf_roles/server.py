"""A small OpenAI-compatible server for trying the roles on this machine; `model` is a role.

It listens on 127.0.0.1 and answers one request after another. For other machines, many users, tools
and stop sequences, serve the adapters by vLLM (docs/how-to/serve-roles.md).
"""

import asyncio
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hf_rlhf.errors import ConfigError, HfRlhfError
from hf_rlhf_roles.engine import BadPrompt, Engine, Reply, Sampling

LOCAL_HOSTS = re.compile(r"(localhost|127\.0\.0\.1)(:[0-9]+)?", re.IGNORECASE)
MAX_BODY = 1 << 20
"""Bytes of a request."""
ENGINE = web.AppKey("engine", Engine)
MAX_TOKENS = web.AppKey("max_tokens", int)


class Message(BaseModel):
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """A chat completion request. Fields that would be ignored are refused."""

    model_config = ConfigDict(extra="forbid")
    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: Literal[1] = 1
    stream: bool = False
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        """Drop nulls, which many clients send for every optional field."""
        if not isinstance(body, dict):
            return body
        return {key: value for key, value in body.items() if value is not None}

    def sampling(self, limit: int) -> Sampling:
        """Return how the reply is generated. Raises BadPrompt for more than `limit` tokens."""
        tokens = self.max_completion_tokens or self.max_tokens or limit
        if tokens > limit:
            raise BadPrompt(
                f"max_tokens is {tokens}; this server allows {limit}. See --max_tokens."
            )
        return Sampling(tokens, self.temperature, self.top_p, self.seed)


def make_app(engine: Engine, max_tokens: int = 1024) -> web.Application:
    """Return the application; a reply has at most `max_tokens` tokens."""
    app = web.Application(middlewares=[_only_local], client_max_size=MAX_BODY)
    app[ENGINE], app[MAX_TOKENS] = engine, max_tokens
    app.router.add_get("/v1/models", _models)
    app.router.add_post("/v1/chat/completions", _chat)
    return app


@web.middleware
async def _only_local(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a web page could send: a rebound host name, or a form without a preflight."""
    if not LOCAL_HOSTS.fullmatch(request.headers.get("Host", "")):
        return _error(403, "This server answers requests to localhost and 127.0.0.1 only.")
    if request.method == "POST" and request.content_type != "application/json":
        return _error(415, "Send JSON, with `Content-Type: application/json`.")
    try:
        return await handler(request)
    except web.HTTPException as error:
        paths = "There are GET /v1/models and POST /v1/chat/completions."
        return _error(error.status, f"{request.method} {request.path}: {error.reason}. {paths}")


async def _models(request: web.Request) -> web.Response:
    data = [{"id": name, "object": "model"} for name in request.app[ENGINE].roles]
    return web.json_response({"object": "list", "data": data})


async def _chat(request: web.Request) -> web.StreamResponse:
    engine = request.app[ENGINE]
    try:
        body = ChatRequest.model_validate_json(await request.read())
        engine.role(body.model)
        sampling = body.sampling(request.app[MAX_TOKENS])
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        pieces = _generate(engine, body, sampling)
        send = _stream if body.stream else _complete
        return await send(request, pieces, {**head, "model": body.model})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "request"
        return _error(400, f"{where}: {first['msg']}")
    except ConfigError as error:
        return _error(404, "; ".join(map(str, error.problems)), code="model_not_found")
    except BadPrompt as error:
        return _error(400, str(error))


async def _generate(
    engine: Engine, body: ChatRequest, sampling: Sampling
) -> AsyncGenerator[str | Reply]:
    """Yield the text while a thread generates it, then the reply. Closing ends the generation."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | None]()
    stop = threading.Event()
    messages = [message.model_dump() for message in body.messages]

    def put(text: str) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, text)

    work = asyncio.to_thread(engine.reply, body.model, messages, sampling, on_text=put, stop=stop)
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (text := await queue.get()) is not None:
            yield text
        yield await task
    finally:
        stop.set()


async def _complete(
    request: web.Request, pieces: AsyncGenerator[str | Reply], head: dict[str, Any]
) -> web.StreamResponse:
    """Return the whole reply at its end; nothing to a client that disconnected before."""
    async with aclosing(pieces):
        async for piece in pieces:
            if isinstance(piece, Reply):
                return web.json_response({**head, "object": "chat.completion", **_content(piece)})
            if request.transport is None or request.transport.is_closing():
                break
    return web.Response()


def _content(reply: Reply) -> dict[str, Any]:
    message = {"role": "assistant", "content": reply.text}
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": reply.finish_reason}],
        "usage": {
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


async def _stream(
    request: web.Request, pieces: AsyncGenerator[str | Reply], head: dict[str, Any]
) -> web.StreamResponse:
    """Send each piece of the reply as an event."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    async with aclosing(pieces):
        with suppress(ConnectionError):  # the client disconnected
            async for piece in pieces:
                if not response.prepared:  # with the first piece the prompt is known to be good
                    await response.prepare(request)
                choice: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": None}
                if isinstance(piece, Reply):
                    choice["finish_reason"] = piece.finish_reason
                else:
                    choice["delta"] = {"role": "assistant", "content": piece}
                chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
                await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await response.write(b"data: [DONE]\n\n")
    return response


def _error(status: int, message: str, *, code: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


def open_port(port: int) -> socket.socket:
    """Take a port of 127.0.0.1 before anything is loaded; 0 takes a free one.

    Raises HfRlhfError for a port that is in use.
    """
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        opened.close()
        raise HfRlhfError(f"port {port} cannot be used: {error}. See --port.") from error
    return opened


def serve(engine: Engine, opened: socket.socket, max_tokens: int) -> None:
    """Serve on a port that is open until interrupted."""
    url = f"http://127.0.0.1:{opened.getsockname()[1]}/v1"
    ready = f"{url} serves {', '.join(engine.roles)} on one base. Ctrl-C stops it."
    with suppress(KeyboardInterrupt):
        web.run_app(
            make_app(engine, max_tokens),
            sock=opened,
            print=lambda _: print(ready, flush=True),
            access_log=None,
            shutdown_timeout=5,
        )
