"""Convert HTTP to plain functions and back: a handler takes a `Call` and returns a response.

Handlers are ordinary functions that may block. They run in threads of their own, so that a slow
handler (reading a large file) cannot starve the handlers that it waits for.
"""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, unquote

import anyio
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from hf_rlhf.errors import RunFolderError
from hf_rlhf_local_hub.access import Caller
from hf_rlhf_local_hub.blobs import Blobs, Upload
from hf_rlhf_local_hub.hub import THREADS, Hub
from hf_rlhf_local_hub.names import Kind, check_kind
from hf_rlhf_local_hub.refusals import Refused, repo_not_found
from hf_rlhf_local_hub.store import Repository

_LARGEST_JSON = 32 * 1024 * 1024
_WRITE_AT_ONCE = 1024 * 1024


@dataclass
class Call:
    """A parsed request. `body` is JSON or form fields; `upload` is a body on disk."""

    hub: Hub
    method: str
    params: dict[str, str]
    query: QueryParams
    headers: Headers
    base: str
    body: dict[str, Any] = field(default_factory=dict)
    upload: Upload | None = None

    @cached_property
    def caller(self) -> Caller:
        """The caller; raise Refused (401) for a wrong token."""
        return self.hub.access.caller(self.headers.get("authorization"))

    @property
    def bearer(self) -> str:
        """The token itself."""
        return self.headers.get("authorization", "").partition(" ")[2].strip()

    @property
    def kind(self) -> Kind:
        """The kind of repository in the path; models have no prefix in some paths."""
        return check_kind(self.params.get("kind", "models"))

    @property
    def repo_id(self) -> str:
        """The repository in the path."""
        if "namespace" not in self.params:
            # The real Hub has a few of these (`gpt2`); this Hub has none.
            raise repo_not_found(self.params["name"], anonymous=self.caller.anonymous)
        return f"{self.params['namespace']}/{self.params['name']}"

    @property
    def received(self) -> Upload:
        """The body on disk, for a route with uploads."""
        assert self.upload is not None
        return self.upload

    def text(self, name: str, default: str = "") -> str:
        """Return a text field of the body, or `default`; raise Refused (400) for other types."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise Refused(400, f"{name}: expected a text, found {shorten(repr(value), 60)}")
        return value

    def listed(self, name: str) -> list[Any]:
        """Return a list field of the body, empty without it; raise Refused (400) otherwise."""
        value = self.body.get(name, [])
        if not isinstance(value, list):
            raise Refused(400, f"{name}: expected a list, found {shorten(repr(value), 60)}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a query parameter is true."""
        return self.query.get(name, "").lower() in ("1", "true")

    def readable(self) -> Repository:
        """Return the path's repository; raise Refused unless the caller may see it."""
        return self.find(self.kind, self.repo_id)

    def writable(self) -> Repository:
        """Return the path's repository; raise Refused unless the caller may change it."""
        return self.find_writable(self.kind, self.repo_id)

    def find(self, kind: Kind, repo_id: str) -> Repository:
        """Return a repository; raise Refused unless the caller may see it."""
        try:
            repository = self.hub.store.get(kind, repo_id)
        except Refused as refusal:
            if refusal.code != "RepoNotFound":
                raise
            raise repo_not_found(repo_id, anonymous=self.caller.anonymous) from None
        self.caller.need_read(repository.id, private=repository.settings.private)
        return repository

    def find_writable(self, kind: Kind, repo_id: str) -> Repository:
        """Return a repository; raise Refused unless the caller may change it."""
        repository = self.find(kind, repo_id)
        self.caller.need_write(repository.id.split("/")[0])
        return repository


Handler = Callable[[Call], Response]
Guard = Callable[[Call], object]
Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(hub: Hub, handler: Handler, guard: Guard | None = None) -> Endpoint:
    """Wrap a handler as a Starlette endpoint.

    Args:
        hub: the hub of the handler.
        handler: may raise Refused, which becomes the answer.
        guard: raises Refused before a byte of the body is read. With a guard, the body goes to disk
            and becomes `Call.upload`; without, it is small and becomes `Call.body`.
    """
    threads = anyio.CapacityLimiter(THREADS)

    async def answer(request: Request) -> Response:
        call = None
        try:
            call = _call(hub, request)
            if guard is None:
                call.body = await _fields(request)
            else:
                await anyio.to_thread.run_sync(guard, call)
                call.upload = await _to_disk(request, hub.store.blobs)
            return await anyio.to_thread.run_sync(handler, call, limiter=threads)
        except Refused as refusal:
            await _drain(request)
            return refused(refusal)
        except (RunFolderError, OSError) as error:
            # Nothing of it is visible. The most likely cause is a full disk.
            return refused(Refused(507, f"The Hub cannot write to its folder: {error}"))
        finally:
            if call is not None and call.upload is not None:
                call.upload.discard()

    return answer


class Answer(JSONResponse):
    """JSON in ASCII: a lone surrogate in a client's text then causes no server error."""

    def render(self, content: Any) -> bytes:
        """Return `content` as bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def refused(refusal: Refused) -> Answer:
    """Return the refusal in the format that clients parse."""
    # A header is a line of printable ASCII.
    line = " ".join(refusal.message.split()).encode("unicode_escape").decode()
    headers = {"X-Error-Message": line[:1000]}
    if refusal.code:
        headers["X-Error-Code"] = refusal.code
    return Answer({"error": refusal.message}, refusal.status, headers)


def read_json(data: bytes) -> Any:
    """Parse strict JSON; raise ValueError for anything else, at any depth."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(data, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def shorten(text: str, most: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= most else f"{text[:most]}..."


def _call(hub: Hub, request: Request) -> Call:
    host = request.headers.get("host", "")
    return Call(
        hub=hub,
        method=request.method,
        params={name: unquote(value) for name, value in request.path_params.items()},
        query=request.query_params,
        headers=request.headers,
        base=f"{request.url.scheme}://{host}",
    )


async def _fields(request: Request) -> dict[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _LARGEST_JSON:
            raise Refused(413, f"The request has more than {_LARGEST_JSON} bytes.")
    if not data:
        return {}
    if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return dict(parse_qs(data.decode("utf-8", "replace")))
    try:
        fields = read_json(data)
    except ValueError as error:
        raise Refused(400, f"The request is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Refused(400, f"Expected a JSON object, found {type(fields).__name__}.")
    return fields


async def _drain(request: Request) -> None:
    """Read the rest of a body, if it is short: a client still sending would not see the answer."""
    size = 0
    with suppress(ClientDisconnect, RuntimeError):  # Starlette's flag for a body that was read
        async for chunk in request.stream():
            size += len(chunk)
            if size > _LARGEST_JSON:
                return


async def _to_disk(request: Request, blobs: Blobs) -> Upload:
    upload = blobs.new_upload()
    waiting = bytearray()
    try:
        async for chunk in request.stream():
            waiting += chunk
            if len(waiting) >= _WRITE_AT_ONCE:
                await anyio.to_thread.run_sync(upload.write, bytes(waiting))
                waiting.clear()
        await anyio.to_thread.run_sync(upload.write, bytes(waiting))
    except ClientDisconnect:
        upload.discard()
        raise Refused(400, "The client went away in the middle of its request.") from None
    except OSError:
        upload.discard()
        raise
    return upload
