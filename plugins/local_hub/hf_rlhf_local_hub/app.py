"""The ASGI application: all routes and middleware."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hf_rlhf_local_hub import file_api, repo_api, xet_api
from hf_rlhf_local_hub.faults import FaultMiddleware, Faults
from hf_rlhf_local_hub.http import Answer, refused
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.refusals import Refused


def build(hub: Hub, faults: Faults, drop: Callable[[Scope], None], hosts: list[str]) -> ASGIApp:
    """Return the application.

    Args:
        hub: the hub to serve.
        faults: the scripted faults.
        drop: closes the connection of a request.
        hosts: accepted host names. A web page can make requests to a loopback address, but only
            under its own host name ("DNS rebinding").
    """
    routes = [
        Route("/", _front),
        *repo_api.routes(hub),
        *xet_api.routes(hub),
        *file_api.routes(hub),
    ]
    app: ASGIApp = Starlette(routes=routes, exception_handlers={404: _no_route, 405: _no_route})
    app = TrustedHostMiddleware(app, allowed_hosts=hosts, www_redirect=False)
    return FaultMiddleware(_RawPaths(app), faults, drop)


class _RawPaths:
    """Route on the raw path, so that an encoded slash in a branch's name (%2F) is preserved."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def _front(request: Request) -> Response:
    return Answer({"what": "a local hub of hf_rlhf", "docs": "docs/how-to/local-hub.md"})


def _no_route(request: Request, error: Exception) -> Response:
    missing = f"This Hub has no {request.method} {request.url.path}"
    return refused(Refused(404, f"{missing}: see docs/how-to/local-hub.md."))
