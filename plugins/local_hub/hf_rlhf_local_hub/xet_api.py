"""The Xet protocol's server side (https://huggingface.co/docs/xet/api), version 1 of each call.

Clients try version 2 first and fall back on 404. There is no deduplication across clients: the
answer to `/v1/chunks/...` is 404 too, and each client only avoids sending what it sent before.
"""

import time

from starlette.responses import FileResponse, Response
from starlette.routing import Route

from hf_rlhf_local_hub.http import Answer, Call, Guard, Handler, byte_range, endpoint
from hf_rlhf_local_hub.hub import Hub
from hf_rlhf_local_hub.names import check_digest
from hf_rlhf_local_hub.refusals import Refused

_TICKET_SECONDS = 3600
_REPO = "/api/{kind:kind}/{namespace}/{name}"


def routes(hub: Hub) -> list[Route]:
    """Return the routes of this module."""
    cas = hub.cas_path
    table: list[tuple[str, str, Handler, Guard | None]] = [
        ("GET", _REPO + "/xet-read-token/{revision}", read_token, None),
        ("GET", _REPO + "/xet-write-token/{revision}", write_token, None),
        ("POST", cas + "/v1/xorbs/default/{digest}", add_xorb, _may_write),
        ("POST", cas + "/v1/shards", add_shard, _may_write),
        ("GET", cas + "/v1/reconstructions/{digest}", reconstruction, None),
        ("GET", cas + "/xorbs/{digest}", xorb, None),
        # Sent to the root of the address, wherever the service is.
        ("POST", "/v1/telemetry", telemetry, None),
    ]
    return [
        Route(path, endpoint(hub, handler, guard), methods=[method])
        for method, path, handler, guard in table
    ]


def read_token(call: Call) -> Response:
    """Give a token to read contents with."""
    repository = call.readable()
    settings = repository.settings
    call.caller.need_files(repository.id, private=settings.private, gated=settings.gated)
    return _token(call, "read")


def write_token(call: Call) -> Response:
    """Give a token to send contents with."""
    call.writable()
    return _token(call, "write")


def _token(call: Call, scope: str) -> Response:
    expiry = int(time.time()) + _TICKET_SECONDS
    ticket, url = call.hub.ticket(scope, _TICKET_SECONDS), call.hub.cas_url(call.base)
    headers = {
        "X-Xet-Cas-Url": url,
        "X-Xet-Access-Token": ticket,
        "X-Xet-Token-Expiration": str(expiry),
    }
    return Answer({"casUrl": url, "accessToken": ticket, "exp": expiry}, headers=headers)


def _may_write(call: Call) -> None:
    if not call.hub.check_ticket(call.bearer, "write"):
        raise Refused(401, "This Xet token is not valid, or no longer.")


def add_xorb(call: Call) -> Response:
    """Keep a xorb."""
    inserted = call.hub.xet.add_xorb(call.params["digest"], call.received)
    return Answer({"was_inserted": inserted})


def add_shard(call: Call) -> Response:
    """Keep the recipes of a shard."""
    call.hub.xet.add_shard(call.received)
    return Answer({"result": 1})


def reconstruction(call: Call) -> Response:
    """Say how a file is put together."""
    if not any(call.hub.check_ticket(call.bearer, scope) for scope in ("read", "write")):
        raise Refused(401, "This Xet token is not valid, or no longer.")
    cas = call.hub.cas_url(call.base)

    def link(name: str) -> str:
        ticket = call.hub.ticket(f"xorb {name}", _TICKET_SECONDS)
        return f"{cas}/xorbs/{name}?ticket={ticket}"

    wanted = byte_range(call.headers.get("range"))
    return Answer(call.hub.xet.reconstruction(call.params["digest"], wanted, link))


def xorb(call: Call) -> Response:
    """Send (part of) a xorb."""
    digest = check_digest(call.params["digest"])
    if not call.hub.check_ticket(call.query.get("ticket", ""), f"xorb {digest}"):
        raise Refused(403, "This address is not valid, or no longer.")
    if not call.hub.xet.xorbs.has(digest):
        raise Refused(404, f"No xorb {digest}")
    path = call.hub.xet.xorbs.path(digest)
    return FileResponse(path, media_type="application/octet-stream")


def telemetry(call: Call) -> Response:
    """Take a client's report of its speed, and forget it."""
    return Answer({})
